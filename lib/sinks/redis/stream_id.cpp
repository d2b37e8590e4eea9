#include "sinks/redis/stream_id.hpp"

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

std::optional<StreamId> id_for(std::int64_t position, StreamId top) noexcept {
    const auto number = static_cast<std::uint64_t>(position);
    if (const StreamId usual{number, 0}; usual > top)
        return usual;
    if (const StreamId late{top.ms, number}; late > top)
        return late;
    return top.next();
}

std::optional<StreamState> StreamState::parse(const RespValue& answer) {
    StreamState state;
    bool has_top = false;
    for (std::size_t i = 0; i + 1 < answer.elements.size(); i += 2) {
        const std::string& name = answer.elements[i].text;
        const RespValue& value = answer.elements[i + 1];
        if (name == "last-generated-id") {
            const std::optional<StreamId> top = StreamId::parse(value.text);
            if (!top)
                return std::nullopt;
            state.top = *top;
            has_top = true;
        } else if (name == "first-entry" && value.is_array() && value.at(0) != nullptr) {
            const std::optional<StreamId> first = StreamId::parse(value.at(0)->text);
            if (!first)
                return std::nullopt;
            state.first = *first;
            state.empty = false;
        }
    }
    if (!has_top)
        return std::nullopt;
    return state;
}

// [[id, [field, value, ...]]]
bool is_entry_of(const RespValue& answer, std::string_view event_id) {
    const RespValue* entry = answer.at(0);
    const RespValue* fields = entry != nullptr ? entry->at(1) : nullptr;
    if (fields == nullptr)
        return false;
    for (std::size_t i = 0; i + 1 < fields->elements.size(); i += 2) {
        const std::string& name = fields->elements[i].text;
        if ((name == "event_id" || name == "ce_id") && fields->elements[i + 1].text == event_id)
            return true;
    }
    return false;
}

}  // namespace outbox
