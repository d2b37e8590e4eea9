// Where pg_outbox listens to statements: what concerns its workers, and what they are in the way
// of.
#pragma once

namespace outbox {

// From _PG_init, when preloading.
void install_hooks();

}  // namespace outbox
