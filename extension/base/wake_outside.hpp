// Wakes relays outside the server (outbox-relay), which have no latch.
//
// Such a relay holds the wake lock, an advisory lock, while it sleeps. A session that enqueues
// shares the lock until its transaction ends, or, if it cannot, sends a notification when it
// commits. So no relay goes to sleep while there is a transaction whose events nobody would tell it
// of, and a relay that is awake costs a session one lock that conflicts with no other session.
// sql/pg_outbox/relay.sql has the other side.
//
// Databases without such a destination pay for a test of one flag.
#pragma once

namespace outbox {

// To be called after an event was written to the log.
void wake_outside_at_commit();

// Called from _PG_init.
void register_wake_outside();

}  // namespace outbox
