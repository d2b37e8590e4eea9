#include "sinks/aws/aws_message.hpp"

#include <algorithm>

#include "core/base64.hpp"
#include "core/text.hpp"
#include "net/sha256.hpp"
#include "sinks/cloudevents.hpp"

namespace outbox {

static std::size_t base64_size(std::size_t size) noexcept {
    return (size + 2) / 3 * 4;
}

// ---------------------------------------------------------------------------------------------
// Text
// ---------------------------------------------------------------------------------------------

// Returns the length of the first character of `text`, or 0 if it must not be sent.
static std::size_t character_length(std::string_view text) noexcept {
    const char first = text[0];
    if (static_cast<unsigned char>(first) < ' ' && first != '\t' && first != '\n' && first != '\r')
        return 0;
    if (text.starts_with("\xef\xbf\xbe") || text.starts_with("\xef\xbf\xbf"))
        return 0;  // U+FFFE, U+FFFF
    return utf8_length(text);
}

bool is_message_text(std::string_view text) noexcept {
    while (!text.empty()) {
        const std::size_t length = character_length(text);
        if (length == 0)
            return false;
        text.remove_prefix(length);
    }
    return true;
}

static bool is_group_id(std::string_view text) noexcept {
    return !text.empty() && text.size() <= 128 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// ---------------------------------------------------------------------------------------------
// Messages
// ---------------------------------------------------------------------------------------------

std::string& AwsMessage::add(std::string_view name, std::string_view type) {
    Attribute& attribute = attributes_[used_++];
    attribute.name = name;
    attribute.type = type;
    attribute.value.clear();
    return attribute.value;
}

// `which(name)` selects the headers to add.
template <class Which>
void AwsMessage::add_headers(const Event& event, Which which) {
    document_.clear();
    for (const Header& header : event.headers) {
        if (header.kind == Header::Kind::null || !which(header.name))
            continue;
        document_ += document_.empty() ? '{' : ',';
        append_json_string(document_, header.name);
        document_ += ':';
        if (header.kind == Header::Kind::string)
            append_json_string(document_, header.value);
        else
            document_ += header.value;
    }
    if (document_.empty())
        return;
    document_ += '}';
    add("headers") = document_;
}

void AwsMessage::add_attributes(const Event& event) {
    append_uuid(add("event_id"), event.event_id);
    add("event_type") = event.event_type;
    add("aggregate_type") = event.aggregate_type;
    add("aggregate_id") = event.aggregate_id;
    if (event.has_version)
        append_integer(add("version", "Number"), event.version);
    append_integer(add("schema_version", "Number"), event.schema_version);
    append_timestamp(add("occurred_at"), event.occurred_at);
    if (event.has_payload)
        add("content_type") = event.content_type;
    add_headers(event, [](std::string_view) { return true; });
}

void AwsMessage::assign(const Event& event, const MessageStyle& style) {
    used_ = 0;
    body_ = event.payload;
    if (style.format == EventFormat::structured) {
        add("content-type") = "application/cloudevents+json; charset=UTF-8";
        add_headers(event, [](std::string_view name) { return !is_attribute_name(name); });
        encode_structured(event, style.source_prefix, structured_);
        body_ = structured_.body;
    } else {
        add_attributes(event);
    }
    if (body_.empty()) {
        add("encoding") = "none";
        body_ = "-";
    } else if (!is_message_text(body_)) {
        add("encoding") = "base64";
        encoded_.clear();
        append_base64(encoded_, body_);
        body_ = encoded_;
    }
    for (const Header& header : event.headers)
        if (is_trace_header(header.name) && header.kind == Header::Kind::string &&
            !header.value.empty() && used_ < attributes_.size())
            add(header.name) = header.value;

    group_id_.clear();
    deduplication_id_.clear();
    if (!style.fifo)
        return;
    append_uuid(deduplication_id_, event.event_id);
    if (event.ordering_key.empty())
        group_id_ = deduplication_id_;
    else if (is_group_id(event.ordering_key))
        group_id_ = event.ordering_key;
    else
        group_id_ = sha256_hex(event.ordering_key);
}

std::size_t AwsMessage::size() const {
    std::size_t size = body_.size();
    for (const Attribute& attribute : *this)
        size += attribute.name.size() + attribute.type.size() + attribute.value.size();
    return size;
}

std::string_view AwsMessage::illegal_attribute() const {
    for (const Attribute& attribute : *this)
        if (!is_message_text(attribute.value))
            return attribute.name;
    return {};
}

// ---------------------------------------------------------------------------------------------
// Sizes
// ---------------------------------------------------------------------------------------------

// Names of headers need no escapes, and their values have no control characters.
static std::size_t headers_bound(const Event& event) noexcept {
    std::size_t size = 2;  // of the braces
    for (const Header& header : event.headers) {
        size += header.name.size() + 2 * header.value.size() + 8;
        if (is_trace_header(header.name))  // also an attribute
            size += header.name.size() + header.value.size() + 8;
    }
    return size;
}

std::size_t message_size_bound(const Event& event, const MessageStyle& style) noexcept {
    // Names and types of attributes, ids, numbers, times.
    constexpr std::size_t fixed = 400;
    const std::size_t texts = event.event_type.size() + event.aggregate_type.size() +
                              event.aggregate_id.size() + event.content_type.size();
    if (style.format != EventFormat::structured) {
        const std::size_t body = is_message_text(event.payload) ? event.payload.size()
                                                                : base64_size(event.payload.size());
        return fixed + texts + headers_bound(event) + body;
    }
    const std::size_t document = event_document_bound(event, style.source_prefix);
    return fixed + headers_bound(event) + base64_size(document);
}

}  // namespace outbox
