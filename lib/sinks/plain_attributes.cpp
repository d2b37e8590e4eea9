#include "sinks/plain_attributes.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

static bool is_our_name(std::string_view name) {
    return std::find(plain_attribute_names.begin(), plain_attribute_names.end(), name) !=
           plain_attribute_names.end();
}

std::optional<std::string_view> value_of(const Event& event, PlainAttribute attribute,
                                         std::string& text) {
    text.clear();
    switch (attribute) {
        case PlainAttribute::event_id:
            append_uuid(text, event.event_id);
            return text;
        case PlainAttribute::event_type:
            return event.event_type;
        case PlainAttribute::aggregate_type:
            return event.aggregate_type;
        case PlainAttribute::aggregate_id:
            return event.aggregate_id;
        case PlainAttribute::version:
            if (!event.has_version)
                return std::nullopt;
            append_integer(text, event.version);
            return text;
        case PlainAttribute::schema_version:
            append_integer(text, event.schema_version);
            return text;
        case PlainAttribute::occurred_at:
            append_timestamp(text, event.occurred_at);
            return text;
        case PlainAttribute::content_type:
            if (event.has_payload)
                return event.content_type;
            return std::nullopt;
    }
    return std::nullopt;
}

void for_each_plain_attribute(const Event& event, const TakePart& attribute) {
    std::string text;
    for (std::size_t i = 0; i < plain_attribute_names.size(); i++)
        if (const auto value = value_of(event, static_cast<PlainAttribute>(i), text))
            attribute(plain_attribute_names[i], *value);
    for (const Header& header : event.headers)
        if (header.kind != Header::Kind::null && !is_our_name(header.name))
            attribute(header.name, header.value);
}

void for_each_named_attribute(const Event& event, const std::vector<NamedAttribute>& named,
                              const TakePart& attribute) {
    std::string text;
    for (const NamedAttribute& one : named)
        if (const auto value = value_of(event, one.attribute, text))
            attribute(one.name, *value);
    for (const Header& header : event.headers)
        if (header.kind != Header::Kind::null &&
            std::none_of(named.begin(), named.end(),
                         [&](const NamedAttribute& one) { return one.name == header.name; }))
            attribute(header.name, header.value);
}

}  // namespace outbox
