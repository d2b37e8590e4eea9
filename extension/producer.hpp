// Whether the current user may enqueue events of a topic.
#pragma once

#include "pg.hpp"

namespace outbox {

// Raises an error if outbox.producer limits him to other topics.
void check_may_produce(Datum topic, Oid role);

}  // namespace outbox
