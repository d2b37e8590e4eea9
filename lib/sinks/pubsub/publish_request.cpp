#include "sinks/pubsub/publish_request.hpp"

#include "core/base64.hpp"
#include "core/text.hpp"
#include "sinks/cloudevents.hpp"
#include "sinks/plain_attributes.hpp"
#include "sinks/pubsub/limits.hpp"

namespace outbox {

namespace {

// Writes the members of `attributes` of a message.
class AttributeWriter {
  public:
    AttributeWriter(std::string& out, MessageLimits& limits) : out_(out), limits_(limits) {}

    void add(std::string_view name, std::string_view value) {
        limits_.attribute(name, value);
        if (!first_)
            out_ += ',';
        first_ = false;
        append_json_string(out_, name);
        out_ += ':';
        append_json_string(out_, value);
    }

  private:
    std::string& out_;
    MessageLimits& limits_;
    bool first_ = true;
};

void add_binary(AttributeWriter& attributes, const Event& event, std::string_view source_prefix) {
    std::string prefixed = "ce-";
    take_apart(
        event, source_prefix,
        [&](std::string_view name, std::string_view value) {
            prefixed.resize(3);
            prefixed += name;
            attributes.add(prefixed, value);
            if (is_trace_header(name))
                attributes.add(name, value);
        },
        [&](std::string_view name, std::string_view value) { attributes.add(name, value); });
    if (event.has_payload)
        attributes.add("content-type", event.content_type);
}

void add_beside_document(AttributeWriter& attributes, const Event& event) {
    attributes.add("content-type", "application/cloudevents+json; charset=UTF-8");
    for (const Header& header : event.headers)
        if (header.kind != Header::Kind::null &&
            (!is_attribute_name(header.name) || is_trace_header(header.name)))
            attributes.add(header.name, header.value);
}

}  // namespace

PublishEncoder::PublishEncoder(EventFormat format, std::string_view database)
    : format_(format), source_prefix_(source_prefix(database)) {}

std::optional<std::string> PublishEncoder::encode(std::span<Event* const> events,
                                                  std::string& body) {
    body = R"({"messages":[)";
    for (const Event* event : events) {
        if (event != events.front())
            body += ',';
        if (std::optional<std::string> broken = append(body, *event))
            return broken;
    }
    body += "]}";
    return std::nullopt;
}

std::optional<std::string> PublishEncoder::append(std::string& out, const Event& event) {
    MessageLimits limits;
    out += R"({"attributes":{)";
    AttributeWriter attributes(out, limits);
    std::string_view data = event.payload;
    switch (format_) {
        case EventFormat::binary:
            add_binary(attributes, event, source_prefix_);
            break;
        case EventFormat::structured:
            add_beside_document(attributes, event);
            encode_structured(event, source_prefix_, document_);
            data = document_.body;
            break;
        default:
            for_each_plain_attribute(event, [&](std::string_view name, std::string_view value) {
                attributes.add(name, value);
            });
            break;
    }
    out += '}';
    limits.ordering_key(event.ordering_key);
    if (!event.ordering_key.empty()) {
        out += R"(,"orderingKey":)";
        append_json_string(out, event.ordering_key);
    }
    limits.data(data.size());
    if (std::optional<std::string> broken = limits.broken())
        return broken;
    if (!data.empty()) {
        out += R"(,"data":")";
        append_base64(out, data);
        out += '"';
    }
    out += '}';
    return std::nullopt;
}

std::size_t PublishEncoder::size_of(const Event& event) noexcept {
    constexpr std::size_t names = 300;  // names of attributes, and parts that are always there
    std::size_t size = names + event.payload.size() * 4 / 3 + 2 * event.ordering_key.size() +
                       event.topic.size() + event.aggregate_type.size() +
                       event.aggregate_id.size() + event.event_type.size() +
                       event.content_type.size();
    for (const Header& header : event.headers)
        size += (header.name.size() + header.value.size() + 10) *
                (is_trace_header(header.name) ? 2 : 1);  // with and without a prefix
    return size;
}

}  // namespace outbox
