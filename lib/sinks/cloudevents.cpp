#include "sinks/cloudevents.hpp"

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/base64.hpp"
#include "core/content_type.hpp"
#include "core/json_check.hpp"
#include "core/percent.hpp"
#include "core/text.hpp"

namespace outbox {

// HTTP binding, section 3.1.3.2: characters that a header value cannot have are percent-encoded.
static void append_header_value(std::string& out, std::string_view value) {
    for (char c : value) {
        const bool plain = c > ' ' && c < 0x7f && c != '"' && c != '%';
        if (plain)
            out += c;
        else
            append_percent(out, c);
    }
}

// Encodes one segment of a path (RFC 3986).
static void append_path_segment(std::string& out, std::string_view text) {
    constexpr std::string_view others = "-._~!$&'()*+,;=:@";
    for (char c : text) {
        const bool plain = (c >= '0' && c <= '9') ||
                           (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z') ||
                           others.find(c) != std::string_view::npos;
        if (plain)
            out += c;
        else
            append_percent(out, c);
    }
}

std::string source_prefix(std::string_view database) {
    std::string prefix = "/";
    append_path_segment(prefix, database);
    prefix += '/';
    return prefix;
}

// These names are set from the event, or describe the data. enqueue() refuses headers with them.
static bool is_own_attribute(std::string_view name) {
    static constexpr std::string_view own[] = {"aggregateversion",
                                               "data",
                                               "datacontenttype",
                                               "dataschema",
                                               "id",
                                               "partitionkey",
                                               "schemaversion",
                                               "sequence",
                                               "source",
                                               "sourceeventid",
                                               "specversion",
                                               "subject",
                                               "time",
                                               "topic",
                                               "type"};
    static_assert(std::is_sorted(std::begin(own), std::end(own)));
    return std::binary_search(std::begin(own), std::end(own), name);
}

// A header with the name of an attribute would replace the attribute, so it is not sent.
static bool is_sent(const Header& header) {
    return header.kind != Header::Kind::null && !is_own_attribute(header.name);
}

bool is_attribute_name(std::string_view name) {
    return std::all_of(name.begin(), name.end(),
                       [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); });
}

bool is_trace_header(std::string_view name) noexcept {
    return name == "traceparent" || name == "tracestate";
}

// Calls attribute(name, value) for all attributes except `id`, `specversion` and those of the data.
// The value is valid only during the call.
template <class Attribute>
static void for_each_attribute(const Event& event, std::string_view source_prefix,
                               Attribute attribute) {
    std::string text(source_prefix);
    append_path_segment(text, event.aggregate_type);
    attribute("source", text);
    attribute("type", event.event_type);
    attribute("subject", event.aggregate_id);
    text.clear();
    append_timestamp(text, event.occurred_at);
    attribute("time", text);
    if (!event.ordering_key.empty())
        attribute("partitionkey", event.ordering_key);
    auto number = [&](std::string_view name, std::int64_t value) {
        text.clear();
        append_integer(text, value);
        attribute(name, text);
    };
    number("sequence", event.position);
    if (event.has_version)
        number("aggregateversion", event.version);
    number("schemaversion", event.schema_version);
    attribute("topic", event.topic);
    if (event.has_source_event_id) {
        text.clear();
        append_uuid(text, event.source_event_id);
        attribute("sourceeventid", text);
    }
}

void take_apart(const Event& event, std::string_view source_prefix, const TakePart& attribute,
                const TakePart& header) {
    attribute("specversion", "1.0");
    std::string id;
    append_uuid(id, event.event_id);
    attribute("id", id);
    for_each_attribute(event, source_prefix, attribute);
    for (const Header& part : event.headers)
        if (is_sent(part))
            (is_attribute_name(part.name) ? attribute : header)(part.name, part.value);
}

// enqueue() refuses control characters. In rows that were written without it they must not begin
// new header lines.
static void append_line_part(std::string& out, std::string_view text) {
    for (const char c : text)
        out += (static_cast<unsigned char>(c) < ' ' || c == 0x7f) ? ' ' : c;
}

static void append_http_header(std::string& out, std::string_view name, std::string_view value) {
    append_line_part(out, name);
    out += ": ";
    append_line_part(out, value);
    out += "\r\n";
}

void encode_binary(const Event& event, std::string_view source_prefix, RequestContent& content) {
    std::string& out = content.headers;
    out.clear();
    take_apart(
        event, source_prefix,
        [&](std::string_view name, std::string_view value) {
            out += "ce-";
            out += name;
            out += ": ";
            append_header_value(out, value);
            out += "\r\n";
            if (is_trace_header(name))
                append_http_header(out, name, value);
        },
        [&](std::string_view name, std::string_view value) {
            append_http_header(out, name, value);
        });
    if (event.has_payload)
        append_http_header(out, "Content-Type", event.content_type);
    content.body = event.payload;
}

// ---------------------------------------------------------------------------------------------
// JSON
// ---------------------------------------------------------------------------------------------

// The payload is checked again, although the type says JSON: restored rows, and rows of an earlier
// version, have not been checked by this version's enqueue().
static bool is_json(const Event& event) {
    const std::optional<ContentType> type = ContentType::parse(event.content_type);
    return type && type->is_json() && is_json_value(event.payload);
}

static void append_member(std::string& out, std::string_view name, std::string_view value) {
    out += ',';
    append_json_string(out, name);
    out += ':';
    append_json_string(out, value);
}

// CloudEvents has booleans, integers of 32 bits and strings.
static void append_header_member(std::string& out, std::string_view name, const Header& header) {
    const auto number = parse_integer(header.value);
    const bool literal = header.kind == Header::Kind::literal &&
                         (header.value == "true" || header.value == "false" ||
                          (number && *number >= INT32_MIN && *number <= INT32_MAX));
    if (!literal) {
        append_member(out, name, header.value);
        return;
    }
    out += ',';
    append_json_string(out, name);
    out += ':';
    out += header.value;
}

static std::string attribute_name_from(std::string_view header_name) {
    std::string name = "x";
    for (char c : header_name) {
        const char lower = ascii_lower(c);
        if (is_attribute_name({&lower, 1}))
            name += lower;
    }
    // "x-tenant" becomes "xtenant", not "xxtenant".
    return name.starts_with("xx") ? name.substr(1) : name;
}

// `headers` gets the headers that are not attributes. If it is nullptr they become attributes too.
static void append_document(std::string& out, const Event& event, std::string_view source_prefix,
                            std::string* headers) {
    out += R"({"specversion":"1.0","id":")";
    append_uuid(out, event.event_id);
    out += '"';
    for_each_attribute(event, source_prefix, [&](std::string_view name, std::string_view value) {
        append_member(out, name, value);
    });
    for (const Header& header : event.headers) {
        if (!is_sent(header))
            continue;
        const bool is_attribute = is_attribute_name(header.name);
        if (is_attribute)
            append_header_member(out, header.name, header);
        else if (headers == nullptr)
            append_header_member(out, attribute_name_from(header.name), header);
        if (headers != nullptr && (!is_attribute || is_trace_header(header.name)))
            append_http_header(*headers, header.name, header.value);
    }
    if (event.has_payload) {
        append_member(out, "datacontenttype", event.content_type);
        if (is_json(event)) {
            out += R"(,"data":)";
            out += event.payload;
        } else {
            out += R"(,"data_base64":")";
            append_base64(out, event.payload);
            out += '"';
        }
    }
    out += '}';
}

void append_event_document(std::string& out, const Event& event, std::string_view source_prefix) {
    append_document(out, event, source_prefix, nullptr);
}

std::size_t event_document_bound(const Event& event, std::string_view source_prefix) noexcept {
    // Names of attributes, ids, numbers, times.
    constexpr std::size_t fixed = 800;
    // Longest encoding of a byte: three in a path, six in a JSON string.
    std::size_t size =
        fixed + source_prefix.size() +
        6 * (event.event_type.size() + event.aggregate_type.size() + event.aggregate_id.size() +
             event.content_type.size() + event.ordering_key.size() + event.topic.size()) +
        (event.payload.size() + 2) / 3 * 4;  // in base64
    for (const Header& header : event.headers)
        size += header.name.size() + 6 * header.value.size() + 8;
    return size;
}

void encode_structured(const Event& event, std::string_view source_prefix,
                       RequestContent& content) {
    content.headers = "Content-Type: application/cloudevents+json; charset=UTF-8\r\n";
    content.buffer.clear();
    append_document(content.buffer, event, source_prefix, &content.headers);
    content.body = content.buffer;
}

void encode_batched(std::span<Event* const> events, std::string_view source_prefix,
                    RequestContent& content) {
    content.headers = "Content-Type: application/cloudevents-batch+json; charset=UTF-8\r\n";
    content.buffer = "[";
    for (const Event* event : events) {
        if (content.buffer.size() > 1)
            content.buffer += ',';
        append_event_document(content.buffer, *event, source_prefix);
    }
    content.buffer += ']';
    content.body = content.buffer;
}

}  // namespace outbox
