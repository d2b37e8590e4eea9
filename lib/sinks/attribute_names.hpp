// Names of the attributes of an event, where they travel under names: as its columns are called, or as
// an option of the destination says.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

namespace outbox {

// In the order in which they are sent.
enum class PlainAttribute {
    event_id,
    event_type,
    aggregate_type,
    aggregate_id,
    version,
    schema_version,
    occurred_at,
    content_type,
};

// In the order of PlainAttribute.
inline constexpr std::array plain_attribute_names{
    std::string_view{"event_id"},       std::string_view{"event_type"},
    std::string_view{"aggregate_type"}, std::string_view{"aggregate_id"},
    std::string_view{"version"},        std::string_view{"schema_version"},
    std::string_view{"occurred_at"},    std::string_view{"content_type"}};

struct NamedAttribute {
    PlainAttribute attribute;
    std::string name;
};

// Reads "event_id:id, event_type", the value of this option.
Result<std::vector<NamedAttribute>> parse_named_attributes(std::string_view option,
                                                           std::string_view list);

}  // namespace outbox
