#include "extension/base/citus.hpp"

#include <dlfcn.h>

// Citus commits in one phase if a transaction has changed rows on one other node only. It does not
// know of the event, which is not in a table of its own: so it would commit those rows first, and a
// crash before the commit here would lose the event.

namespace outbox::citus {

static void (*use_two_phases)() = nullptr;

// The server loads libraries with RTLD_GLOBAL, so the name is enough.
void find() {
    use_two_phases =
        reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "Use2PCForCoordinatedTransaction"));
}

void commit_in_two_phases() noexcept {
    if (use_two_phases != nullptr)
        use_two_phases();  // sets a flag, until the end of the transaction
}

}  // namespace outbox::citus
