// Whether a role may produce events of a topic.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Captured tables have the topics of outbox.grant_capture() as well.
enum class Produces { by_enqueue, by_capture };

// Raises an error unless outbox.producer has the topic for the role.
void check_may_produce(Datum topic, Oid role, Produces produces = Produces::by_enqueue);

}  // namespace outbox
