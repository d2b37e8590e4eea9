// Events under the names of their own columns: the format `attributes` of brokers whose messages have
// attributes or headers beside the payload.
#pragma once

#include "core/event.hpp"
#include "sinks/cloudevents.hpp"

namespace outbox {

// event_id, event_type, aggregate_type, aggregate_id, version, schema_version, occurred_at,
// content_type, and then the headers of the event. What an event does not have is left out, and so is
// a header that bears one of these names. A value is only valid during the call.
void for_each_plain_attribute(const Event& event, const TakePart& attribute);

}  // namespace outbox
