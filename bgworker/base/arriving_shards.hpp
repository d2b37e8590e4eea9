// Shards of a Citus cluster that have moved to this node, and whose earlier events another node delivers:
// sql/pg_outbox/native/citus/arriving_shard.sql.
#pragma once

namespace outbox {

// Needs a transaction.
bool any_shard_arrives();

// Returns whether a window may have events for which a destination has to wait. The snapshot of the window
// must have been taken before this call. Needs a transaction with SPI. If no shard arrives, it is false.
bool shards_hold(const char* destination);

}  // namespace outbox
