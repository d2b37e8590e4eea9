#include "sinks/redis/stream_id.hpp"

namespace outbox {

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

// [id, [field, value, ...]]. The first field of our entries is the id of the event.
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
