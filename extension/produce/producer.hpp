// Checks whether a role may produce events of a topic.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Captured tables also have the topics of outbox.grant_capture().
enum class Produces { by_enqueue, by_capture };

// Raises an error unless the role may produce events of the topic.
void check_may_produce(Datum topic, Oid role, Produces produces = Produces::by_enqueue);

}  // namespace outbox
