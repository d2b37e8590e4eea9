// Events under the names of their own columns: the format `attributes` of brokers whose messages have
// attributes or headers beside the payload.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/event.hpp"
#include "sinks/attribute_names.hpp"
#include "sinks/cloudevents.hpp"

namespace outbox {

// Returns std::nullopt if the event does not have it. `text` holds the value if the event has it in
// another form.
std::optional<std::string_view> value_of(const Event& event, PlainAttribute attribute,
                                         std::string& text);

// event_id, event_type, aggregate_type, aggregate_id, version, schema_version, occurred_at,
// content_type, and then the headers of the event. An attribute that the event does not have is
// left out, and so is a header with one of these names. A value is only valid during the call.
void for_each_plain_attribute(const Event& event, const TakePart& attribute);

// The same with these attributes under these names.
void for_each_named_attribute(const Event& event, const std::vector<NamedAttribute>& named,
                              const TakePart& attribute);

}  // namespace outbox
