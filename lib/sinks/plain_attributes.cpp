#include "sinks/plain_attributes.hpp"

#include <algorithm>
#include <array>

#include "core/text.hpp"

namespace outbox {

static bool is_our_name(std::string_view name) {
    static constexpr std::array names{
        std::string_view{"event_id"},       std::string_view{"event_type"},
        std::string_view{"aggregate_type"}, std::string_view{"aggregate_id"},
        std::string_view{"version"},        std::string_view{"schema_version"},
        std::string_view{"occurred_at"},    std::string_view{"content_type"}};
    return std::find(names.begin(), names.end(), name) != names.end();
}

void for_each_plain_attribute(const Event& event, const TakePart& attribute) {
    std::string text;
    append_uuid(text, event.event_id);
    attribute("event_id", text);
    attribute("event_type", event.event_type);
    attribute("aggregate_type", event.aggregate_type);
    attribute("aggregate_id", event.aggregate_id);
    const auto number = [&](std::string_view name, std::int64_t value) {
        text.clear();
        append_integer(text, value);
        attribute(name, text);
    };
    if (event.has_version)
        number("version", event.version);
    number("schema_version", event.schema_version);
    text.clear();
    append_timestamp(text, event.occurred_at);
    attribute("occurred_at", text);
    if (event.has_payload)
        attribute("content_type", event.content_type);
    for (const Header& header : event.headers)
        if (header.kind != Header::Kind::null && !is_our_name(header.name))
            attribute(header.name, header.value);
}

}  // namespace outbox
