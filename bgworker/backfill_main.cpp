// The worker of one backfill. It runs batch after batch, each in a transaction of its own, and has
// no transaction open while it waits.
//
// outbox_internal.backfill_step() (sql/pg_outbox/backfill.sql) does the work of a batch; this file
// decides when. The worker ends when the backfill does. An error in the functions themselves ends
// the process, and the keeper starts another.
#include <algorithm>

#include "bgworker/base/query_result.hpp"
#include "bgworker/base/worker.hpp"
#include "core/backoff.hpp"
#include "extension/base/settings.hpp"

namespace outbox {

// Result of one step; see outbox_internal.backfill_step().
enum class Next { more, behind, later, over };

struct Step {
    Next next;
    int rows;
    int rate;  // rows per second; 0 for no limit
};

static Next next_called(const char* name) {
    if (strcmp(name, "more") == 0)
        return Next::more;
    if (strcmp(name, "behind") == 0)
        return Next::behind;
    return strcmp(name, "later") == 0 ? Next::later : Next::over;
}

static int number_in(int column) {
    bool is_null;
    const Datum value = result_value(0, column, &is_null);
    return is_null ? 0 : DatumGetInt32(value);
}

// Gives up before deadlock_timeout, so that a session we deadlock with is never chosen as the
// victim.
static void limit_waits_for_locks(bool limited) {
    char limit[16];
    snprintf(limit, sizeof limit, "%d", limited ? std::max(1, DeadlockTimeout / 2) : 0);
    SetConfigOption("lock_timeout", limit, PGC_USERSET, PGC_S_SESSION);
}

static Step take_step() {
    static SPIPlanPtr plan = nullptr;
    // DROP EXTENSION may be under way. This worker holds no lock yet that it could wait for, so
    // there can be no deadlock.
    limit_waits_for_locks(false);
    if (!begin_sql_work("backfilling a table", "pg_outbox"))
        return {Next::over, 0, 0};
    limit_waits_for_locks(true);
    if (plan == nullptr) {
        Oid types[] = {INT8OID};
        plan = SPI_prepare("SELECT outcome, rows, rate FROM outbox_internal.backfill_step($1)", 1,
                           types);
        if (plan == nullptr || SPI_keepplan(plan) != 0)
            elog(ERROR, "could not prepare a step of a backfill");
    }
    Datum id[] = {Int64GetDatum(shared->slots[my_slot].object)};
    const int code = SPI_execute_plan(plan, id, nullptr, false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not backfill: %s", SPI_result_code_string(code));
    check_result_row("backfill_step", {TEXTOID, INT4OID, INT4OID});
    const Datum outcome = required_value("backfill_step", 0, 1);
    const Step step = {next_called(TextDatumGetCString(outcome)), number_in(2), number_in(3)};
    end_sql_work();
    return step;
}

// Returns the milliseconds to wait after a batch, so that no more rows per second are read than
// allowed. Up to a second of lost time is made up for.
static long pause_after(const Step& step) {
    static Micros due = steady_now();
    if (step.rate == 0)
        return 0;
    const Micros now = steady_now();
    due = std::max(due, now - seconds(1)) + step.rows * seconds(1) / step.rate;
    return due > now ? static_cast<long>((due - now) / 1000) : 0;
}

// Waits for the whole pause, because the latch may be set for other reasons.
static void wait_milliseconds(long pause) {
    const Micros end = steady_now() + milliseconds(pause);
    for (Micros now = steady_now(); now < end && !reload_is_due(); now = steady_now()) {
        wait_for_latch(milliseconds_until(end, now), "OutboxBackfillPause");
        handle_signals();
    }
}

}  // namespace outbox

extern "C" PGDLLEXPORT void outbox_backfill_main(Datum argument) {
    using namespace outbox;

    become_worker(argument, WakeBackfills);
    // A crash loses a batch together with the note that it was done, so it is done again.
    SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION);
    Backoff poll(milliseconds(settings::poll_min), milliseconds(settings::poll_max), random_seed());
    Backoff locked(milliseconds(100), seconds(2), random_seed());
    while (true) {
        if (handle_signals() || reload_requested())
            poll.set_limits(milliseconds(settings::poll_min), milliseconds(settings::poll_max));
        begin_looking();
        const Step step = take_step();
        set_my_state(step.next == Next::more ? WorkerState::delivering : WorkerState::idle);
        switch (step.next) {
            case Next::more:
                poll.reset();
                locked.reset();
                wait_milliseconds(pause_after(step));
                break;
            case Next::behind:
                if (!work_is_due())
                    wait_for_latch(static_cast<long>(poll.next() / 1000 + 1),
                                   "OutboxBackfillDestination");
                break;
            case Next::later:
                wait_milliseconds(static_cast<long>(locked.next() / 1000 + 1));
                break;
            case Next::over:
                proc_exit(0);
        }
    }
}
