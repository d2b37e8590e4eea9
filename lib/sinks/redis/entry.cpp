#include "sinks/redis/entry.hpp"

#include "core/text.hpp"
#include "net/resp.hpp"
#include "sinks/cloudevents.hpp"
#include "sinks/plain_attributes.hpp"

namespace outbox {

EntryEncoder::EntryEncoder(EventFormat format, std::string_view database)
    : format_(format), source_prefix_(source_prefix(database)) {}

void EntryEncoder::add(std::string_view name, std::string_view value) {
    append_argument(arguments_, name);
    append_argument(arguments_, value);
    count_ += 2;
}

void EntryEncoder::encode(const Event& event) {
    arguments_.clear();
    count_ = 0;
    switch (format_) {
        case EventFormat::binary:
            add_binary(event);
            break;
        case EventFormat::structured:
            add_structured(event);
            break;
        default:
            for_each_plain_attribute(event, [&](std::string_view name, std::string_view value) {
                if (name != "ordering_key" && name != "payload")
                    add(name, value);
            });
            if (!event.ordering_key.empty())
                add("ordering_key", event.ordering_key);
            if (event.has_payload)
                add("payload", event.payload);
            break;
    }
}

// A header must not have the name of a field with another meaning.
static bool is_free(std::string_view name) {
    return name != "data" && name != "content-type" && !name.starts_with("ce_");
}

void EntryEncoder::add_binary(const Event& event) {
    const auto header = [&](std::string_view name, std::string_view value) {
        if (is_free(name))
            add(name, value);
    };
    std::string id;
    append_uuid(id, event.event_id);
    add("ce_id", id);
    take_apart(
        event, source_prefix_,
        [&](std::string_view name, std::string_view value) {
            if (name == "id")
                return;
            prefixed_ = "ce_";
            prefixed_ += name;
            add(prefixed_, value);
            if (is_trace_header(name))
                add(name, value);
        },
        header);
    if (event.has_payload) {
        add("content-type", event.content_type);
        add("data", event.payload);
    }
}

void EntryEncoder::add_structured(const Event& event) {
    std::string id;
    append_uuid(id, event.event_id);
    add("ce_id", id);
    for (const Header& header : event.headers)
        if (header.kind != Header::Kind::null && is_free(header.name) &&
            (!is_attribute_name(header.name) || is_trace_header(header.name)))
            add(header.name, header.value);
    add("content-type", "application/cloudevents+json; charset=UTF-8");
    encode_structured(event, source_prefix_, document_);
    add("data", document_.body);
}

std::size_t EntryEncoder::size_of(const Event& event) noexcept {
    constexpr std::size_t names = 450;  // of fields, with lengths, and of what every entry has
    std::size_t size = names + event.payload.size() + 2 * event.ordering_key.size() +
                       event.topic.size() + event.aggregate_type.size() +
                       event.aggregate_id.size() + event.event_type.size() +
                       event.content_type.size();
    for (const Header& header : event.headers)
        size += header.name.size() + header.value.size() + 20;
    return size;
}

}  // namespace outbox
