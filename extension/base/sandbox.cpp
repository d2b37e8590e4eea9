#include "extension/base/sandbox.hpp"

#include <algorithm>

#include "extension/base/owners_rights.hpp"
#include "extension/base/settings.hpp"
#include "extension/base/steady_time.hpp"

namespace outbox {

// The clock is looked at this often, so that pg_terminate_backend() need not wait for the timeout.
static constexpr int max_tick = 250;
// Code that has not looked for a cancellation for this many times the timeout is left by force.
static constexpr int force_after = 3;

Oid without_superuser(Oid role) {
    return superuser_arg(role) ? nobody : role;
}

// -------------------------------------------------------------------------------------------------
// Time
// -------------------------------------------------------------------------------------------------

// Written by the signal handler, and by start_clock() while it cannot run.
static volatile sig_atomic_t is_over = false;
static volatile sig_atomic_t was_forced = false;
static Micros started_at;

// Raises an error in the middle of code that looks for no interrupt. The jump leaves a handler, whose
// signal is blocked.
static void leave_by_force() {
    const bool again = was_forced;
    was_forced = true;
    QueryCancelPending = false;
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &alarm, nullptr);
    // Code that catches the first error does not catch this one.
    ereport(again || ProcDiePending ? FATAL : ERROR,
            (errcode(ERRCODE_QUERY_CANCELED),
             errmsg("an expression did not end, and was left by force")));
}

// From version 17 on, a function may catch the first cancellation. A worker does not wait for what
// comes after that.
static void look_at_clock() {
    const Micros elapsed = (steady_now() - started_at) / 1000;
    const int limit = settings::expression_timeout;
    const bool nobody_looked = is_over && QueryCancelPending;
    const bool holds_nothing =
        InterruptHoldoffCount <= 1 && CritSectionCount == 0;  // 1 is the handler's
    if (elapsed < limit && !ProcDiePending)
        return;
    if (nobody_looked && holds_nothing &&
        (ProcDiePending || elapsed >= static_cast<int64>(limit) * force_after))
        leave_by_force();
    if (is_over && !QueryCancelPending && MyBackendType == B_BG_WORKER)
        ProcDiePending = true;
    is_over = true;
    QueryCancelPending = true;
    InterruptPending = true;
    SetLatch(MyLatch);
}

static TimeoutId clock_id() {
    static const TimeoutId id = RegisterTimeout(USER_TIMEOUT, look_at_clock);
    return id;
}

static void start_clock() {
    is_over = false;
    started_at = steady_now();
    const int tick = std::min(max_tick, settings::expression_timeout);
    enable_timeout_every(clock_id(), TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tick),
                         tick);
}

// Code that ended in time must not be cancelled afterwards.
static void stop_clock() {
    disable_timeout(clock_id(), false);
    if (is_over)
        QueryCancelPending = false;
}

bool Sandbox::timed_out() {
    return is_over;
}

bool left_by_force() {
    return was_forced;
}

// -------------------------------------------------------------------------------------------------
// The subtransaction
// -------------------------------------------------------------------------------------------------

static void set_for_code(const char* name, const char* value) {
    set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

// The end of the subtransaction gives back the rights and the settings.
void Sandbox::open(Oid role) {
    MemoryContext outer = CurrentMemoryContext;
    resources_ = CurrentResourceOwner;
    BeginInternalSubTransaction(nullptr);
    own_resources_ = CurrentResourceOwner;
    open_ = true;
    [[maybe_unused]] const OwnersRights rights(role);
    // Above LOG, which "error" would let through.
    set_for_code("log_min_messages", "fatal");
    set_for_code("client_min_messages", "error");
    XactReadOnly = true;
    MemoryContextSwitchTo(outer);
    CurrentResourceOwner = resources_;
}

void Sandbox::enter() {
    CurrentResourceOwner = own_resources_;
    EnterParallelMode();
    start_clock();
}

void Sandbox::leave() {
    stop_clock();
    ExitParallelMode();
    CurrentResourceOwner = resources_;
}

// Locks of a session outlive the subtransaction that took them. A worker has none of its own.
void Sandbox::close() {
    if (!open_)
        return;
    MemoryContext outer = CurrentMemoryContext;
    open_ = false;
    stop_clock();
    RollbackAndReleaseCurrentSubTransaction();
    MemoryContextSwitchTo(outer);
    CurrentResourceOwner = resources_;
    if (MyBackendType == B_BG_WORKER)
        LockReleaseSession(USER_LOCKMETHOD);
}

// The first stage of the timeout, for users.
static void name_timeout(ErrorData& error) {
    if (error.sqlerrcode == ERRCODE_QUERY_CANCELED && is_over)
        error.message = timeout_message();
}

char* timeout_message() {
    return psprintf("it took longer than outbox.expression_timeout (%d ms)",
                    settings::expression_timeout);
}

Node* make_in_sandbox(Oid role, Node* (*work)(void*), void* argument) {
    MemoryContext outer = CurrentMemoryContext;
    Sandbox sandbox;
    Node* volatile made = nullptr;
    sandbox.open(role);
    PG_TRY();
    {
        sandbox.enter();
        Node* node = work(argument);
        sandbox.leave();
        MemoryContextSwitchTo(outer);
        made = static_cast<Node*>(copyObjectImpl(node));
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(outer);
        ErrorData* error = CopyErrorData();
        FlushErrorState();
        sandbox.close();
        name_timeout(*error);
        ReThrowError(error);
    }
    PG_END_TRY();
    sandbox.close();
    return made;
}

}  // namespace outbox
