// The worker of one destination. It runs a relay (core/relay/relay.hpp) inside the server:
//
//   recover       a short transaction, once, if the destination takes events exactly once
//   read          a short transaction: scan the next window, read a block of its events
//   take retries  a short transaction: rows of outbox.delivery that are due
//   note          a short transaction: the events of one that the destination is about to commit
//   consult       a short transaction: what the sink wants to know about its endpoints
//   record        a short transaction: events in trouble go to outbox.delivery
//   save          a short transaction, now and then: the cursor and receipts
//   wait          no transaction: for the network, a commit, a deadline
//
// The relay decides which of these is next. Only the relay uses the network, and never inside a
// transaction.
//
// Any error inside the server ends the process. The keeper starts another, which goes on from the
// saved cursor. That may deliver some events twice, within the documented bound, and loses none.
//
// All C++ objects belong to the process (`process`), so that an error that jumps skips no destructor.
#include <memory>

#include "bgworker/base/arriving_shards.hpp"
#include "bgworker/base/worker.hpp"
#include "bgworker/relay/destination_config.hpp"
#include "bgworker/relay/log_reader.hpp"
#include "bgworker/relay/spi_call.hpp"
#include "core/relay/home.hpp"
#include "extension/base/boundary.hpp"
#include "extension/base/outside_text.hpp"
#include "extension/base/settings.hpp"
#include "extension/base/wakeup.hpp"
#include "extension/log/log.hpp"
#include "sinks/sink_loader.hpp"
#include "sinks/traced_sink.hpp"

namespace outbox {

// Time to save the cursor at exit. Events settled after the saved cursor are delivered again.
static constexpr int milliseconds_to_leave = 500;
static constexpr int milliseconds_to_record = 250;  // of them
// Pause before the next look while events wait for those of another node.
static constexpr int milliseconds_held = 50;
// Pause before the next look at what another relay reads.
static constexpr int milliseconds_others_read = 1;

// Expressions of a destination may catch a cancellation, but not what die() does.
static volatile sig_atomic_t may_catch_cancellation = false;

struct Process {
    SystemClock clock;
    DestinationConfig config;
    DestinationConfig new_config;
    Destination destination;  // outlives the relay's sink, which refers to it
    Relay relay;
    Home home;
    calls::Held held{.number = -1, .lease = -1};
    calls::Call call;  // to the database, and its answer
    std::unique_ptr<sql::CopiedRows> copied;
    sql::Rows answer;
    std::vector<Notice> notices;
    Snapshot look;                  // of the last scan for a window
    bool cursor_lost = false;       // an operator moved it, or another relay took it
    bool expressions_fail = false;  // so the destination is misconfigured
    bool shards_arrive = false;     // so other relays must look at the log themselves
    SinkReport report{};
    LineBudget library_lines{};

    Process(DeliveryStats& stats, const Uuid& token)
        : relay(clock, stats, random_seed()), home(relay, clock, token) {}
};

static Process* process = nullptr;
static LogReader* reader = nullptr;
static WaitEventSet* wait_set = nullptr;

static DeliveryStats& my_stats() {
    return shared->slots[my_slot].stats;
}

static const char* my_name() {
    return NameStr(shared->slots[my_slot].name);
}

// ---------------------------------------------------------------------------------------------
// Configuration
// ---------------------------------------------------------------------------------------------

static void make_wait_set() {
    if (wait_set != nullptr)
        FreeWaitEventSet(wait_set);
    wait_set = compat::create_process_wait_event_set(3);
    AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, nullptr);
    AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, nullptr, nullptr);
    const int descriptor = process->relay.started() ? process->relay.pipeline().descriptor() : -1;
    if (descriptor >= 0)
        AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, descriptor, nullptr, nullptr);
}

// Starts over from the cursor with a new sink. Events in flight are given up and sent again.
static std::optional<Error> restart_relay() {
    process->relay.stop();
    process->config = process->new_config;
    Result<Destination> destination = process->config.destination();
    if (!destination)
        return destination.error();
    process->destination = std::move(destination.value());
    process->destination.identity = std::to_string(GetSystemIdentifier()) + '.' +
                                    process->config.source + '.' +
                                    std::to_string(process->relay.cursor().number);
    process->home.set_identity(process->destination.identity);
    Result<std::unique_ptr<Sink>> sink = create_sink({process->destination, process->clock});
    if (!sink)
        return sink.error();
    Pipeline::Limits limits = process->config.limits;
    limits.receipts = process->destination.receipts;
    process->relay.start(traced(std::move(sink.value()), process->config.tracing,
                                {process->destination, process->clock}),
                         limits);
    return std::nullopt;
}

// Needs a transaction, which frees the text.
static void show_error(const char* error) {
    const char* line = line_from_outside(error);
    set_my_error(line);
    ereport(LOG, (errmsg("destination \"%s\": %s", NameForLog(my_name()).text, line)));
}

static void misconfigured(const char* error) {
    show_error(error);
    set_my_state(WorkerState::misconfigured);
}

static Expressions expressions() {
    return {my_name(), process->config.owner, process->config.expressions()};
}

// Begins to evaluate expressions. Returns false, and stops the relay, if they cannot be.
static bool begin_evaluating(Expressions& evaluation) {
    const char* trouble = evaluation.begin();
    process->expressions_fail = trouble != nullptr;
    if (trouble == nullptr)
        return true;
    process->relay.stop();
    misconfigured(trouble);
    make_wait_set();
    return false;
}

static bool can_evaluate(Expressions& evaluation) {
    const bool can = begin_evaluating(evaluation);
    evaluation.end();
    return can;
}

// Starts over from the cursor in the table, which an operator may have moved.
static void start_over() {
    restart_reading(reader);
    forget_window();
    const CoreError error = call_core([] { return restart_relay(); });
    if (error.failed)
        misconfigured(error.message);
    make_wait_set();
    Expressions evaluation = expressions();
    if (!error.failed)
        can_evaluate(evaluation);
}

// A function or right that was missing may be there by now, and nobody tells the relay.
static bool expressions_work_again() {
    if (!process->expressions_fail)
        return false;
    begin_work("checking expressions");
    Expressions evaluation = expressions();
    const bool work = evaluation.begin() == nullptr;
    evaluation.end();
    end_work();
    return work;
}

// Carries the call that `make` makes, whose answer is then in `process`. Needs a transaction, which
// should commit before the relay gets the answer.
template <class Make>
static void run(const Make& make) {
    run_core([&make] {
        process->call = make();
        process->copied = std::make_unique<sql::CopiedRows>();
    });
    run_call(process->call, *process->copied);
    run_core([] { process->answer = sql::Rows(std::move(process->copied)); });
}

template <class Make>
static calls::Outcome carry(const Make& make) {
    run(make);
    calls::Outcome outcome{};
    run_core([&outcome]() -> std::optional<Error> {
        const auto known = calls::outcome_of(process->answer);
        if (!known)
            return Error{ErrorKind::internal, "unexpected outcome", process->call.text};
        outcome = *known;
        return std::nullopt;
    });
    return outcome;
}

// Asks for decisions of operators: whether the destination is paused, which keys are held.
static bool ask_operators() {
    return carry([] { return calls::follow(process->held); }) == calls::Outcome::ok;
}

static void follow_operators() {
    run_core([] {
        process->home.followed(calls::begun_of(process->answer));
        process->relay.follow_operator(process->home.paused());
    });
}

// Locks the tables that a transaction is going to write, before it reads them. DDL locks a table before
// its indexes, and would deadlock with a transaction that reads an index and locks the table for
// writing later.
static void lock_tables() {
    const Oid schema = get_namespace_oid("outbox", false);
    for (const char* name : {"cursor", "delivery"})
        LockRelationOid(get_relname_relid(name, schema), RowExclusiveLock);
}

// Locks the cursor until the transaction ends, also if it must wait for an operator. Returns false
// if the cursor is not ours any more.
static bool wait_for_cursor() {
    return carry([] { return calls::wait(process->held); }) == calls::Outcome::ok;
}

// Takes the destination, so that an earlier relay can save no more. Returns false if the destination
// is gone, or if another session is creating cursors now: try again.
static bool take(Oid server) {
    if (OidIsValid(server))  // keeps its name
        LockDatabaseObject(ForeignServerRelationId, server, 0, AccessShareLock);
    run([server] { return calls::take_inside(server); });
    bool is_taken = false;
    run_core([&is_taken] {
        auto taken = calls::taken_of(process->answer);
        is_taken = taken.has_value();
        if (!is_taken)
            return;
        process->held = {.number = taken->cursor.number,
                         .lease = taken->lease,
                         .only_ascii = GetDatabaseEncoding() != PG_UTF8};
        process->relay.cursor() = std::move(taken->cursor);
    });
    return is_taken;
}

// Needs the lock of the cursor. Starts over from it; an operator may have moved it.
static void begin() {
    const calls::Evaluation none;  // start_over() looks whether expressions can be evaluated
    if (carry([none] { return calls::begin(process->held, process->relay.cursor(), none); }) !=
        calls::Outcome::ok)
        elog(ERROR, "the cursor is not there any more");
    start_over();
    if (!process->relay.started())
        return;
    run_core([] {
        process->home.begun(calls::begun_of(process->answer));
        process->relay.follow_operator(process->home.paused());
    });
}

// Reads the configuration, and starts over if it or the cursor changed. Ends the process if the
// destination does not exist.
static void configure() {
    begin_work_on_changes("reading the configuration");
    const Oid server = shared->slots[my_slot].object;
    const bool exists = load_config(server, process->new_config) && lock_extension("pg_outbox");
    if (!exists) {
        end_work();
        proc_exit(0);
    }
    set_my_name(process->new_config.name.c_str());
    may_catch_cancellation = process->new_config.expressions().any();
    process->relay.set_intervals({.poll_min = milliseconds(settings::poll_min),
                                  .poll_max = milliseconds(settings::poll_max),
                                  .save = milliseconds(settings::cursor_flush_interval)});

    lock_tables();
    SPI_connect();
    bool starts_over = !process->relay.started() || !(process->new_config == process->config);
    if (!ask_operators() || (starts_over && !wait_for_cursor())) {
        if (!take(server)) {
            end_sql_work();
            proc_exit(0);
        }
        starts_over = true;
    }
    process->cursor_lost = false;
    starts_over ? begin() : follow_operators();
    end_sql_work();
}

// ---------------------------------------------------------------------------------------------
// Reading
// ---------------------------------------------------------------------------------------------

static void open_window(int64 count) {
    const bool several = count > 1;
    run_core([several] { process->relay.window_found(process->look, several); });
    // The relay looks again after Relay::gather_time in any case. So the next commit need not wake
    // it, which both would pay for.
    if (several)
        must_look_again();
    tell_keeper_of_progress();
}

// Needs a transaction. Returns whether there is a window to read.
static bool look_for_window() {
    Relay& relay = process->relay;
    const bool shares = !process->shards_arrive && !process->config.expressions().any();
    const int64 count =
        scan_window(reader, relay.frontier(), relay.settled_before(), shares, process->look);
    if (count < 0) {  // DROP EXTENSION; the keeper will leave too
        end_work();
        proc_exit(0);
    }
    if (count == 0)
        return false;
    open_window(count);
    return true;
}

// Needs a transaction that has taken the snapshot for the next window.
static bool waits_for_shards() {
    process->shards_arrive = any_shard_arrives();
    if (!process->shards_arrive)
        return false;
    SPI_connect();
    const bool waits = shards_hold(my_name());
    if (!waits && ask_operators())  // keys may have taken the place of the destination
        follow_operators();
    SPI_finish();
    return waits;
}

static void block_read(ReadResult result) {
    const bool end_of_window = result == ReadResult::end_of_window;
    if (end_of_window)
        forget_window();
    run_core(
        [end_of_window] { process->relay.block_read(end_of_window, last_position_read(reader)); });
}

// Takes the next window from other relays. Returns false if this relay must read it.
static bool take_window_from_others() {
    const int64 count = take_window(reader, process->relay.frontier(), process->look);
    if (count > 0)
        open_window(count);
    if (count == 0)
        run_core([] { process->relay.nothing_found(process->look); });
    return count >= 0;
}

// Takes the next events from other relays. Returns false if this relay must read them.
static bool take_events_from_others() {
    EventBlock* block = nullptr;
    run_core([&block] { block = &process->relay.block(); });
    ReadResult result;
    switch (take_events(reader, process->destination.topics, process->home.recorded(), *block,
                        result)) {
        case Others::have_not_read:
            return false;
        case Others::are_reading:
            process->relay.reading_failed(milliseconds(milliseconds_others_read));
            return true;
        case Others::have_read:
            block_read(result);
            return true;
    }
    return false;
}

// Reads what other relays have read, without a transaction. Returns false if that is not enough.
static bool read_from_others() {
    if (process->config.expressions().any())
        return false;
    if (!process->relay.in_window() && !take_window_from_others())
        return false;
    return !process->relay.in_window() || take_events_from_others();
}

static void read() {
    Relay& relay = process->relay;
    if (!relay.in_window())
        begin_looking();
    if (read_from_others())
        return;
    begin_work("reading the log");
    if (!relay.in_window() && waits_for_shards()) {
        end_work();
        relay.reading_failed(milliseconds(milliseconds_held));
        return;
    }
    if (!relay.in_window() && !look_for_window()) {
        end_work();
        run_core([] { process->relay.nothing_found(process->look); });
        return;
    }
    EventBlock* block = nullptr;
    run_core([&block] { block = &process->relay.block(); });
    Expressions evaluation = expressions();
    if (evaluation.any() && !begin_evaluating(evaluation)) {
        end_work();
        return;
    }
    const ReadResult result =
        read_events(reader, relay.cursor().number, process->destination.topics,
                    process->home.recorded(), evaluation.any() ? &evaluation : nullptr, *block);
    evaluation.end();
    end_work();
    if (result == ReadResult::log_is_gone)
        proc_exit(0);
    block_read(result);
}

// ---------------------------------------------------------------------------------------------
// Writing
// ---------------------------------------------------------------------------------------------

static const char* activity_of(Relay::Wish wish) {
    switch (wish) {
        case Relay::Wish::recover:
            return "recovering transactions";
        case Relay::Wish::take_retries:
            return "taking retries";
        case Relay::Wish::pause:
            return "pausing the destination";
        case Relay::Wish::note:
            return "noting a transaction";
        case Relay::Wish::consult:
            return "looking after endpoints";
        case Relay::Wish::record:
            return "recording events in trouble";
        case Relay::Wish::save:
        case Relay::Wish::read:
        case Relay::Wish::wait:
            break;
    }
    return "saving the cursor";
}

static void tell_notices() {
    if (!process->home.has_notices())
        return;
    run_core([] { process->notices = process->home.take_notices(); });
    for (const Notice& notice : process->notices) {
        char* text = line_from_outside(notice.text);
        char* detail = line_from_outside(notice.detail);
        char* hint = line_from_outside(notice.hint);
        ereport(notice.is_warning ? WARNING : LOG,
                (errmsg("destination \"%s\" %s", NameForLog(my_name()).text, text),
                 *detail != '\0' ? errdetail("%s", detail) : 0,
                 *hint != '\0' ? errhint("%s", hint) : 0));
        pfree(text);
        pfree(detail);
        pfree(hint);
    }
}

// The function that is called evaluates expressions, and makes texts readable.
static calls::Evaluation evaluation_of_calls() {
    return {.any = process->config.expressions().any() || GetDatabaseEncoding() != PG_UTF8};
}

// Makes the call of a wish, in a transaction of its own. Its function locks the cursor, but waits
// for no operator.
static void write(Relay::Wish wish) {
    if (!begin_sql_work(activity_of(wish), "pg_outbox"))
        proc_exit(0);
    Expressions evaluation = expressions();
    if (wish == Relay::Wish::take_retries && evaluation.any() && !can_evaluate(evaluation)) {
        end_sql_work();
        return;
    }
    const calls::Outcome outcome =
        carry([wish] { return process->home.call(wish, process->held, evaluation_of_calls()); });
    end_sql_work();
    if (outcome != calls::Outcome::ok) {
        process->cursor_lost = outcome == calls::Outcome::lost;
        process->home.busy(wish);
        return;
    }
    run_core([wish] { return process->home.answered(wish, std::move(process->answer)); });
    tell_notices();
}

// ---------------------------------------------------------------------------------------------
// State and statistics
// ---------------------------------------------------------------------------------------------

static void show_failures() {
    bool is_new = false;
    run_core([&is_new] { is_new = process->home.look_at_condition(); });
    if (is_new) {
        char* error = line_from_outside(process->relay.reason());
        set_my_error(error);
        pfree(error);
    }
    tell_notices();
}

static void log_library_lines() {
    for (const std::string& line : process->report.lines) {
        if (!process->library_lines.take(process->clock.now()))
            continue;
        char* text = line_from_outside(line);
        ereport(LOG, (errmsg("destination \"%s\": client library: %s", NameForLog(my_name()).text,
                             text)));
        pfree(text);
    }
}

static void show_report() {
    bool there_is_one = false;
    run_core([&there_is_one] { there_is_one = process->relay.pipeline().report(process->report); });
    log_library_lines();
    if (!there_is_one)
        return;
    const SinkReport& report = process->report;
    WorkerSlot& slot = shared->slots[my_slot];
    slot.round_trip_p50.store(report.round_trip_p50, std::memory_order_relaxed);
    slot.round_trip_p99.store(report.round_trip_p99, std::memory_order_relaxed);
    slot.client_queue.store(static_cast<int64>(report.queued), std::memory_order_relaxed);
    slot.connects.store(static_cast<int64>(report.connects), std::memory_order_relaxed);
    slot.disconnects.store(static_cast<int64>(report.disconnects), std::memory_order_relaxed);
}

static void show_progress() {
    const Relay& relay = process->relay;
    const Pipeline& pipeline = relay.pipeline();
    WorkerSlot& slot = shared->slots[my_slot];
    slot.unsettled.store(pipeline.unsettled(), std::memory_order_relaxed);
    slot.held_keys.store(pipeline.held_keys(), std::memory_order_relaxed);
    slot.read_to.store(relay.frontier().xmax, std::memory_order_relaxed);
    slot.oldest.store(pipeline.oldest().value_or(0), std::memory_order_relaxed);
    slot.settled_position.store(relay.cursor().position, std::memory_order_relaxed);
    slot.suspects.store(pipeline.suspects(), std::memory_order_relaxed);
    slot.lanes_down.store(pipeline.lanes_down(), std::memory_order_relaxed);
    slot.request_limit.store(pipeline.request_limit(), std::memory_order_relaxed);
    show_report();
    const Condition::Kind kind = relay.condition();
    show_failures();  // before the state, so that readers find its reason
    slot.failing_since.store(relay.failing_since(), std::memory_order_relaxed);
    slot.next_attempt.store(relay.next_attempt(), std::memory_order_relaxed);
    set_my_state(pipeline.paused()                    ? WorkerState::paused
                 : kind == Condition::Kind::failing   ? WorkerState::backing_off
                 : kind == Condition::Kind::throttled ? WorkerState::throttled
                 : pipeline.unsettled() > 0           ? WorkerState::delivering
                                                      : WorkerState::idle);
}

// ---------------------------------------------------------------------------------------------
// The loop
// ---------------------------------------------------------------------------------------------

// SIGTERM cancels the transaction under way, also a wait for a lock. Then there is time to save the
// cursor, unless an operator has locked it. Events delivered since it was saved are then repeated.
static volatile sig_atomic_t told_to_leave = false;

static void tell_to_leave(SIGNAL_ARGS) {
    const int saved_errno = errno;
    told_to_leave = true;
    if (may_catch_cancellation) {
        die(postgres_signal_arg);
    } else {
        QueryCancelPending = true;
        InterruptPending = true;
        SetLatch(MyLatch);
    }
    errno = saved_errno;
}

// A second SIGTERM changes nothing: in a fast shutdown one may come from the postmaster and another
// from a session. `too_late` ends what takes too long.
[[noreturn]] static void leave() {
    pqsignal(SIGTERM, SIG_IGN);
    QueryCancelPending = false;
    ProcDiePending = false;
    const Relay& relay = process->relay;
    const bool records = relay.started() && relay.has_records();
    const bool saves = relay.started() && relay.must_save_to_leave();
    if (records || saves) {
        SetConfigOption("lock_timeout", "100ms", PGC_SUSET, PGC_S_OVERRIDE);
        const TimeoutId too_late = RegisterTimeout(USER_TIMEOUT, [] { die(SIGTERM); });
        enable_timeout_after(too_late, milliseconds_to_leave);
        // Events that overtook what is not recorded would be delivered again.
        const Micros record_until = process->clock.now() + milliseconds(milliseconds_to_record);
        while (relay.has_records() && process->clock.now() < record_until)
            write(Relay::Wish::record);
        if (saves)
            write(Relay::Wish::save);
    }
    proc_exit(0);
}

static long timeout_until(Micros due) {
    if (due == never)
        return -1;
    const Micros left = due - process->clock.now();
    return left <= 0 ? 0 : static_cast<long>((left + 999) / 1000);
}

static void wait_for_something() {
    const Pipeline& pipeline = process->relay.pipeline();
    const Micros due =
        reload_is_due() || process->cursor_lost ? 0 : process->relay.deadline(work_is_due());
    WaitEvent events[3];
    const int count =
        WaitEventSetWait(wait_set, timeout_until(due), events, lengthof(events),
                         compat::wait_event(pipeline.idle()          ? "OutboxRelayIdle"
                                            : pipeline.backing_off() ? "OutboxRelayBackoff"
                                                                     : "OutboxRelayNetwork"));
    for (int i = 0; i < count; i++)
        if (events[i].events & WL_LATCH_SET)
            ResetLatch(MyLatch);
}

// Runs until the relay wants to wait.
static void turn() {
    Relay::Wish wish = Relay::Wish::wait;
    do {
        const bool committed = work_is_due();
        run_core([&wish, committed] { wish = process->relay.next(committed); });
        if (wish == Relay::Wish::read)
            read();
        else if (wish != Relay::Wish::wait)
            write(wish);
    } while (wish != Relay::Wish::wait && process->relay.started());
}

static void start() {
    reader = create_log_reader();
    Uuid token;  // of retries in flight
    if (!pg_strong_random(token.data(), token.size()))
        elog(ERROR, "could not generate random values");
    run_core([&token] { process = new Process(my_stats(), token); });
    prepare_calls();
    SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_OVERRIDE);
}

static void run() {
    configure();
    while (!told_to_leave) {
        const bool reloaded = handle_signals();
        if (reload_requested() || reloaded || process->cursor_lost || expressions_work_again())
            configure();
        if (!process->relay.started()) {
            wait_for_latch(process->expressions_fail ? Home::look_again / milliseconds(1) : -1,
                           "OutboxRelayMisconfigured");
            continue;
        }
        turn();
        if (!process->relay.started())
            continue;
        show_progress();
        if (left_by_force())
            break;  // another process goes on; the fault of the event is recorded
        wait_for_something();
    }
}

static bool was_cancelled_to_leave() {
    return told_to_leave && geterrcode() == ERRCODE_QUERY_CANCELED;
}

}  // namespace outbox

extern "C" PGDLLEXPORT void outbox_relay_main(Datum argument) {
    using namespace outbox;

    become_worker(argument, WakeRelays);
    start();
    pqsignal(SIGTERM, tell_to_leave);
    PG_TRY();
    { run(); }
    PG_CATCH();
    {
        if (!was_cancelled_to_leave())
            PG_RE_THROW();
        FlushErrorState();
        AbortOutOfAnyTransaction();
    }
    PG_END_TRY();
    leave();
}
