// Hooks on statements that concern the workers, or that the workers would block.
#pragma once

namespace outbox {

// Called from _PG_init when the library is preloaded.
void install_hooks();

}  // namespace outbox
