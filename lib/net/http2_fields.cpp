#include "net/http2_fields.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

static nghttp2_nv field(std::string_view name, std::string_view value, std::uint8_t flags) {
    const auto bytes = [](std::string_view text) {
        return reinterpret_cast<std::uint8_t*>(const_cast<char*>(text.data()));
    };
    return {bytes(name), bytes(value), name.size(), value.size(), flags};
}

void Http2Fields::add(std::string_view name, std::string_view value) {
    fields_.push_back(field(name, value, NGHTTP2_NV_FLAG_NONE));
}

void Http2Fields::add_secret(std::string_view name, std::string_view value) {
    fields_.push_back(field(name, value, NGHTTP2_NV_FLAG_NO_INDEX));
}

// Names must be in lower case, and values have no spaces around them (RFC 9113, section 8.2).
void Http2Fields::add_lines(std::string_view lines) {
    lines_ = lines;
    std::string_view rest = lines_;
    for (std::size_t end; (end = rest.find("\r\n")) != rest.npos; rest.remove_prefix(end + 2)) {
        const std::size_t colon = rest.find(':');
        const std::string_view name = rest.substr(0, colon);
        char* const first = lines_.data() + (name.data() - lines_.data());
        std::transform(first, first + name.size(), first, ascii_lower);
        const std::string_view value = trim(rest.substr(colon + 1, end - colon - 1));
        if (name == "authorization")
            add_secret(name, value);
        else
            add(name, value);
    }
}

}  // namespace outbox
