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
        } else if (name == "first-entry") {
            state.empty = !value.is_array();
        }
    }
    if (!has_top)
        return std::nullopt;
    return state;
}

// [id, [field, value, ...]]. Our entries begin with the id of the event.
std::optional<StreamEntry> StreamEntry::parse(const RespValue& entry) {
    const RespValue *id = entry.at(0), *fields = entry.at(1);
    if (id == nullptr || fields == nullptr)
        return std::nullopt;
    const std::optional<StreamId> parsed = StreamId::parse(id->text);
    if (!parsed)
        return std::nullopt;
    StreamEntry result{.id = *parsed, .event_id = {}};
    const RespValue *name = fields->at(0), *value = fields->at(1);
    if (name != nullptr && value != nullptr && (name->text == "event_id" || name->text == "ce_id"))
        result.event_id = value->text;
    return result;
}

}  // namespace outbox
