#include "redis/entries.hpp"

#include <map>
#include <utility>

#include "message/decode.hpp"

namespace inbox::redis {

using outbox::RespValue;
using outbox::StreamId;
using Fields = std::map<std::string, std::string>;

// [id, [name, value, ...]]. Instead of the fields, a deleted entry has nil.
static std::optional<Entry> entry_of(const RespValue& element) {
    const RespValue *id = element.at(0), *fields = element.at(1);
    const std::optional<StreamId> parsed = id != nullptr ? StreamId::parse(id->text) : std::nullopt;
    if (!parsed)
        return std::nullopt;
    Entry entry{.id = *parsed};
    if (fields == nullptr || element.is_cut) {
        entry.is_cut = true;
        return entry;
    }
    if (!fields->is_array())
        return entry;
    entry.fields = fields;
    entry.is_cut = fields->is_cut;
    for (const RespValue& field : fields->elements)
        entry.is_cut |= field.is_cut;
    return entry;
}

static bool add_entries(Entries& result, const RespValue& entries) {
    if (!entries.is_array())
        return false;
    result.is_cut |= entries.is_cut;
    for (const RespValue& element : entries.elements) {
        if (element.kind == RespValue::Kind::nil)  // Redis 6.2, for a deleted entry
            continue;
        const std::optional<Entry> entry = entry_of(element);
        if (!entry && (element.is_cut || (element.at(0) != nullptr && element.at(0)->is_cut))) {
            result.is_cut = true;
            break;
        }
        if (!entry)
            return false;
        result.entries.push_back(*entry);
    }
    return true;
}

// [[stream, entries]], or nil if there are none.
std::optional<Entries> entries_read(const RespValue& answer) {
    Entries result;
    if (answer.kind == RespValue::Kind::nil)
        return result;
    const RespValue* const stream = answer.at(0);
    const RespValue* const entries = stream != nullptr ? stream->at(1) : nullptr;
    if (answer.elements.size() != 1 || entries == nullptr || !add_entries(result, *entries))
        return std::nullopt;
    return result;
}

// [next, entries, ids that are gone]; the last only since Redis 7.
std::optional<Entries> entries_claimed(const RespValue& answer) {
    const RespValue *next = answer.at(0), *entries = answer.at(1), *gone = answer.at(2);
    const std::optional<StreamId> id = next != nullptr ? StreamId::parse(next->text) : std::nullopt;
    Entries result;
    if (!id || entries == nullptr || !add_entries(result, *entries))
        return std::nullopt;
    result.next = *id;
    if (gone == nullptr)
        return result;
    std::optional<std::vector<StreamId>> ids = ids_in(*gone);
    if (!ids)
        return std::nullopt;
    result.gone = std::move(*ids);
    return result;
}

std::optional<std::vector<StreamId>> ids_in(const RespValue& answer) {
    if (!answer.is_array())
        return std::nullopt;
    std::vector<StreamId> ids;
    for (const RespValue& element : answer.elements) {
        const std::optional<StreamId> id = StreamId::parse(element.text);
        if (!id)
            return std::nullopt;
        ids.push_back(*id);
    }
    return ids;
}

static std::string take(Fields& fields, const char* name) {
    const auto found = fields.extract(name);
    return found ? found.mapped() : std::string();
}

// The sink writes CloudEvents with the names of other sinks, except for "ce_" instead of "ce-".
static Fields with_attribute_names(Fields fields) {
    if (!fields.contains("ce_specversion"))
        return fields;
    Fields named;
    for (auto& [name, value] : fields)
        named.try_emplace(name.starts_with("ce_") ? "ce-" + name.substr(3) : name,
                          std::move(value));
    return named;
}

// Returns the time in the id, if it has one.
static Time published_at(StreamId id, const Event& event) {
    const std::optional<Time> time = time_of(std::chrono::milliseconds(id.ms));
    return time && outbox::is_of_clock(id.ms) ? *time : event.occurred_at;
}

// An id without a time of its own begins again in a stream that is made again.
static std::string name_of(StreamId id, const Fields& fields, const std::string& body) {
    return outbox::is_of_clock(id.ms) ? id.text() : id.text() + '#' + digest_of(fields, body);
}

Delivery delivery_from(const Entry& entry, const std::string& source, const std::string& stream) {
    Fields fields;
    std::size_t size = 0;
    for (std::size_t i = 0; i + 1 < entry.fields->elements.size(); i += 2) {
        const std::string &name = entry.fields->elements[i].text,
                          &value = entry.fields->elements[i + 1].text;
        size += name.size() + value.size();
        fields.try_emplace(name, value);
    }
    const bool is_cloud_event = fields.contains("ce_id");
    if (!fields.contains("ce_specversion"))
        fields.erase("ce_id");  // the document has it, too
    std::string body = take(fields, is_cloud_event ? "data" : "payload");
    std::string key = take(fields, "ordering_key");
    if (const auto found = fields.find("ce_partitionkey"); found != fields.end() && key.empty())
        key = found->second;
    Delivery delivery{.event = {},
                      .source = source,
                      .message_id = entry.id.text(),
                      .published_at = {},
                      .handle = {},
                      .size = size};
    std::string name = name_of(entry.id, fields, body);
    delivery.event = decode_message(with_attribute_names(std::move(fields)), std::move(body),
                                    {.source = source,
                                     .message_id = std::move(name),
                                     .topic = stream,
                                     .ordering_key = key,
                                     .published_at = {}});
    delivery.published_at = published_at(entry.id, delivery.event);
    if (delivery.event.occurred_at == Time{})
        delivery.event.occurred_at = delivery.published_at;
    return delivery;
}

}  // namespace inbox::redis
