// Entry of the module: what happens when the library is loaded.
//
// Where to go from here:
//   enqueue.cpp        outbox.enqueue: from a SQL call into the log
//   wakeup.cpp         what a commit does for the workers
//   ../bgworker/server launcher, keeper, relay, processor
#include "hooks.hpp"
#include "pg.hpp"
#include "server/launcher.hpp"
#include "settings.hpp"
#include "shared_state.hpp"
#include "wakeup.hpp"

extern "C" {
#ifdef PG_MODULE_MAGIC_EXT
PG_MODULE_MAGIC_EXT(.name = "pg_outbox", .version = OUTBOX_VERSION);
#else
PG_MODULE_MAGIC;
#endif
}

extern "C" PGDLLEXPORT void _PG_init(void) {
    using namespace outbox;

    if (IsBinaryUpgrade)  // pg_upgrade moves the catalogs: nobody may work on them meanwhile
        return;

    const bool preloading = process_shared_preload_libraries_in_progress;
    settings::define(preloading);
    if (!preloading)
        return;

    request_shared_state();
    register_transaction_callback();
    install_hooks();
    register_launcher();
}
