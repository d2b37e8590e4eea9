#include "sinks/kafka/record.hpp"

#include <utility>

#include "core/content_type.hpp"
#include "core/text.hpp"
#include "sinks/plain_attributes.hpp"

namespace outbox {

namespace {

void add_binary(const Event& event, std::string_view source_prefix, const TakePart& header) {
    std::string prefixed;
    take_apart(
        event, source_prefix,
        [&](std::string_view name, std::string_view value) {
            prefixed = "ce_";
            prefixed += name;
            header(prefixed, value);
            if (is_trace_header(name))
                header(name, value);
        },
        header);
    if (event.has_payload)
        header("content-type", event.content_type);
}

void add_beside_document(const Event& event, const TakePart& header) {
    header("content-type", "application/cloudevents+json; charset=UTF-8");
    for (const Header& own : event.headers)
        if (own.kind != Header::Kind::null &&
            (!is_attribute_name(own.name) || is_trace_header(own.name)))
            header(own.name, own.value);
}

// Copies JSON without the white space between its tokens.
void append_compact(std::string& out, std::string_view json) {
    bool in_string = false;
    for (std::size_t i = 0; i < json.size(); i++) {
        const char c = json[i];
        if (!in_string && (c == ' ' || c == '\n' || c == '\r' || c == '\t'))
            continue;
        out += c;
        if (c == '"')
            in_string = !in_string;
        else if (in_string && c == '\\' && i + 1 < json.size())
            out += json[++i];
    }
}

}  // namespace

RecordEncoder::RecordEncoder(RecordForm form, std::string_view database)
    : form_(std::move(form)), source_prefix_(source_prefix(database)) {}

std::string_view RecordEncoder::key(const Event& event) {
    if (!form_.json_key || event.ordering_key.empty())
        return event.ordering_key;
    key_.clear();
    append_json_string(key_, event.ordering_key);
    return key_;
}

std::string_view RecordEncoder::payload_of(const Event& event) {
    if (form_.json_payload == JsonPayload::unchanged)
        return event.payload;
    const std::optional<ContentType> type = ContentType::parse(event.content_type);
    if (!type || !type->is_json())
        return event.payload;
    payload_.clear();
    if (form_.json_payload == JsonPayload::compact)
        append_compact(payload_, event.payload);
    else
        append_json_string(payload_, event.payload);
    return payload_;
}

std::optional<std::string_view> RecordEncoder::encode(const Event& event, const TakePart& header) {
    switch (form_.format) {
        case EventFormat::binary:
            add_binary(event, source_prefix_, header);
            break;
        case EventFormat::structured:
            add_beside_document(event, header);
            encode_structured(event, source_prefix_, document_);
            return document_.body;
        default:
            if (form_.headers.empty())
                for_each_plain_attribute(event, header);
            else
                for_each_named_attribute(event, form_.headers, header);
            break;
    }
    return event.has_payload ? std::optional(payload_of(event)) : std::nullopt;
}

std::size_t RecordEncoder::size_of(const Event& event) noexcept {
    constexpr std::size_t names = 250;  // of headers, and what is always there
    std::size_t size = names + event.payload.size() + 2 * event.ordering_key.size() +
                       event.topic.size() + event.aggregate_type.size() +
                       event.aggregate_id.size() + event.event_type.size() +
                       event.content_type.size();
    for (const Header& header : event.headers)
        size += header.name.size() + header.value.size() + 4;
    return size;
}

}  // namespace outbox
