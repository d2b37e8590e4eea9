#include "net/redis_stream_id.hpp"

#include <charconv>
#include <limits>

namespace outbox {

static constexpr std::uint64_t highest = std::numeric_limits<std::uint64_t>::max();

static std::optional<std::uint64_t> parse_number(std::string_view text) noexcept {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
        return std::nullopt;
    return value;
}

static void append_number(std::string& out, std::uint64_t number) {
    char digits[24];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

std::optional<StreamId> StreamId::parse(std::string_view text) noexcept {
    const std::size_t dash = text.find('-');
    if (dash == std::string_view::npos)
        return std::nullopt;
    const auto ms = parse_number(text.substr(0, dash)), seq = parse_number(text.substr(dash + 1));
    if (!ms || !seq)
        return std::nullopt;
    return StreamId{*ms, *seq};
}

void StreamId::append_to(std::string& out) const {
    append_number(out, ms);
    out += '-';
    append_number(out, seq);
}

std::string StreamId::text() const {
    std::string text;
    append_to(text);
    return text;
}

std::optional<StreamId> StreamId::next() const noexcept {
    if (seq < highest)
        return StreamId{ms, seq + 1};
    if (ms < highest)
        return StreamId{ms + 1, 0};
    return std::nullopt;
}

std::optional<StreamId> StreamId::previous() const noexcept {
    if (seq > 0)
        return StreamId{ms, seq - 1};
    if (ms > 0)
        return StreamId{ms - 1, highest};
    return std::nullopt;
}

bool is_of_clock(std::uint64_t ms) noexcept {
    return ms >> 40 != 0;
}

}  // namespace outbox
