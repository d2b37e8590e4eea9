#include "sinks/kafka/record.hpp"

#include "sinks/plain_attributes.hpp"

namespace outbox {

namespace {

bool is_trace(std::string_view name) {
    return name == "traceparent" || name == "tracestate";
}

void add_binary(const Event& event, std::string_view source_prefix, const TakePart& header) {
    std::string prefixed;
    take_apart(
        event, source_prefix,
        [&](std::string_view name, std::string_view value) {
            prefixed = "ce_";
            prefixed += name;
            header(prefixed, value);
            if (is_trace(name))
                header(name, value);
        },
        header);
    if (event.has_payload)
        header("content-type", event.content_type);
}

void add_beside_document(const Event& event, const TakePart& header) {
    header("content-type", "application/cloudevents+json; charset=UTF-8");
    for (const Header& own : event.headers)
        if (own.kind != Header::Kind::null && (!is_attribute_name(own.name) || is_trace(own.name)))
            header(own.name, own.value);
}

}  // namespace

RecordEncoder::RecordEncoder(EventFormat format, std::string_view database)
    : format_(format), source_prefix_(source_prefix(database)) {}

std::optional<std::string_view> RecordEncoder::encode(const Event& event, const TakePart& header) {
    switch (format_) {
        case EventFormat::binary:
            add_binary(event, source_prefix_, header);
            break;
        case EventFormat::structured:
            add_beside_document(event, header);
            encode_structured(event, source_prefix_, document_);
            return document_.body;
        default:
            for_each_plain_attribute(event, header);
            break;
    }
    return event.has_payload ? std::optional(event.payload) : std::nullopt;
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
