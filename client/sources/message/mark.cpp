#include "message/mark.hpp"

#include <charconv>

namespace inbox {

std::string Mark::text() const {
    return *this ? std::to_string(offset) + ' ' + event_id : std::string();
}

Mark Mark::parse(std::string_view text) {
    Mark mark;
    const char* const limit = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), limit, mark.offset);
    const std::string_view rest(end, static_cast<std::size_t>(limit - end));
    if (error != std::errc() || !rest.starts_with(' ') || mark.offset < 0)
        return {};
    mark.event_id = rest.substr(1);
    return mark;
}

}  // namespace inbox
