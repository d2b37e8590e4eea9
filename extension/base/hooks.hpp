// Hooks on statements that concern the workers, or that the workers would block.
#pragma once

namespace outbox {

// Called from _PG_init when the library is preloaded.
void install_hooks();

// Returns whether the session has prepared a statement since the last call, other than those that
// inbox.apply() keeps (sql/pg_inbox/apply.sql).
bool take_prepared_by_others();

}  // namespace outbox
