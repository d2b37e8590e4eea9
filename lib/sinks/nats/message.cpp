#include "sinks/nats/message.hpp"

#include "core/percent.hpp"
#include "core/text.hpp"
#include "sinks/cloudevents.hpp"
#include "sinks/plain_attributes.hpp"

namespace outbox {

static constexpr std::string_view first_line = "NATS/1.0\r\n";
static constexpr std::string_view key_header = "ordering_key";

NatsEncoder::NatsEncoder(EventFormat format, std::string_view database)
    : format_(format), source_prefix_(source_prefix(database)) {}

static bool is_command(std::string_view name) {
    constexpr std::string_view prefix = "Nats-";
    return equal_ignoring_case(name.substr(0, prefix.size()), prefix);
}

static bool is_plain(char c) {
    return c >= ' ' && c <= '~' && c != '%';
}

// Other bytes are encoded because clients interpret them differently, and blanks at the ends
// because they trim them.
static void append_value(std::string& out, std::string_view value) {
    for (std::size_t i = 0; i < value.size(); i++) {
        const bool is_end = i == 0 || i + 1 == value.size();
        if (is_plain(value[i]) && !(is_end && value[i] == ' '))
            out += value[i];
        else
            append_percent(out, value[i]);
    }
}

// The binding for HTTP requires this (section 3.1.3.2).
static void append_cloud_event_value(std::string& out, std::string_view value) {
    for (const char c : value)
        if (is_plain(c) && c != ' ' && c != '"')
            out += c;
        else
            append_percent(out, c);
}

void NatsEncoder::add(std::string_view name, std::string_view value, Values values) {
    for (const char c : name)
        if (is_plain(c) && c != ' ' && c != ':')
            headers_ += c;
        else
            append_percent(headers_, c);
    headers_ += ": ";
    if (values == Values::ours)
        append_value(headers_, value);
    else
        append_cloud_event_value(headers_, value);
    headers_ += "\r\n";
}

void NatsEncoder::add_attributes(const Event& event) {
    for_each_plain_attribute(event, [&](std::string_view name, std::string_view value) {
        if (!is_command(name) && name != key_header)
            add(name, value);
    });
    if (!event.ordering_key.empty())
        add(key_header, event.ordering_key);
}

void NatsEncoder::add_cloud_event(const Event& event) {
    const auto header = [&](std::string_view name, std::string_view value) {
        if (!is_command(name))
            add(name, value);
    };
    take_apart(
        event, source_prefix_,
        [&](std::string_view name, std::string_view value) {
            name_ = "ce-";
            name_ += name;
            add(name_, value, Values::of_cloud_events);
            if (is_trace_header(name))
                add(name, value);
        },
        header);
    if (event.has_payload)
        add("ce-datacontenttype", event.content_type, Values::of_cloud_events);
}

void NatsEncoder::add_beside_document(const Event& event) {
    add("Content-Type", "application/cloudevents+json; charset=UTF-8");
    for (const Header& own : event.headers)
        if (own.kind != Header::Kind::null && !is_command(own.name) &&
            (!is_attribute_name(own.name) || is_trace_header(own.name)))
            add(own.name, own.value);
}

void NatsEncoder::encode(const Event& event, const Demands& demands) {
    headers_ = first_line;
    headers_ += "Nats-Msg-Id: ";
    append_uuid(headers_, event.event_id);
    headers_ += "\r\n";
    if (!demands.stream.empty())
        add("Nats-Expected-Stream", demands.stream);
    if (!demands.last_sequence.empty())
        add("Nats-Expected-Last-Subject-Sequence", demands.last_sequence);
    payload_ = event.payload;
    switch (format_) {
        case EventFormat::binary:
            add_cloud_event(event);
            break;
        case EventFormat::structured:
            add_beside_document(event);
            encode_structured(event, source_prefix_, document_);
            payload_ = document_.body;
            break;
        default:
            add_attributes(event);
            break;
    }
    headers_ += "\r\n";
}

void NatsEncoder::append(std::string& out, std::string_view subject, std::string_view reply) const {
    out.append("HPUB ").append(subject).append(" ").append(reply).append(" ");
    append_integer(out, static_cast<std::int64_t>(headers_.size()));
    out += ' ';
    append_integer(out, static_cast<std::int64_t>(size()));
    out.append("\r\n").append(headers_).append(payload_).append("\r\n");
}

std::size_t NatsEncoder::size_of(const Event& event) noexcept {
    constexpr std::size_t names = 500;  // of headers, and of what every message has
    std::size_t size = names + event.payload.size() + 2 * event.ordering_key.size() +
                       2 * event.topic.size() + event.aggregate_type.size() +
                       2 * event.aggregate_id.size() + event.event_type.size() +
                       event.content_type.size();
    for (const Header& header : event.headers)
        size += header.name.size() + header.value.size() + 4;
    return size;
}

}  // namespace outbox
