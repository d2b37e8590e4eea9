// Entry point of the module: what happens when the library is loaded.
//
// Where to read on:
//   extension/produce/enqueue.cpp   outbox.enqueue: from a SQL call into the log
//   extension/base/wakeup.cpp       what a commit does for the workers
//   bgworker/                       launcher, keeper, relay, processor
#include "extension/base/hooks.hpp"
#include "extension/base/identity.hpp"
#include "extension/base/pg.hpp"
#include "extension/base/settings.hpp"
#include "extension/base/shared_reading.hpp"
#include "extension/base/shared_state.hpp"
#include "extension/base/statement.hpp"
#include "extension/base/wake_outside.hpp"
#include "extension/base/wakeup.hpp"

extern "C" {
#ifdef PG_MODULE_MAGIC_EXT
PG_MODULE_MAGIC_EXT(.name = "pg_outbox", .version = OUTBOX_VERSION);
#else
PG_MODULE_MAGIC;
#endif
}

namespace outbox {

static void register_launcher() {
    BackgroundWorker worker;
    memset(&worker, 0, sizeof worker);
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;  // never on a standby
    worker.bgw_restart_time = 1;
    strlcpy(worker.bgw_library_name, compat::module_name, sizeof worker.bgw_library_name);
    strlcpy(worker.bgw_function_name, "outbox_launcher_main", sizeof worker.bgw_function_name);
    strlcpy(worker.bgw_name, "pg_outbox launcher", sizeof worker.bgw_name);
    strlcpy(worker.bgw_type, "pg_outbox launcher", sizeof worker.bgw_type);
    RegisterBackgroundWorker(&worker);
}

}  // namespace outbox

extern "C" PGDLLEXPORT void _PG_init(void) {
    using namespace outbox;

    if (IsBinaryUpgrade)  // pg_upgrade moves the catalogs: nobody may work on them meanwhile
        return;

    const bool preloading = process_shared_preload_libraries_in_progress;
    settings::define(preloading);
    if (!preloading)
        return;

    read_own_identity();
    request_shared_state();
    request_shared_reading();
    register_transaction_callback();
    register_wake_outside();
    install_hooks();
    install_statement_hooks();
    if (settings::max_workers > 0)
        register_launcher();
}
