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
// All C++ objects belong to the process (`home`), so that an error that jumps skips no destructor.
#include <memory>

#include "bgworker/base/arriving_shards.hpp"
#include "bgworker/base/worker.hpp"
#include "bgworker/relay/cursor_store.hpp"
#include "bgworker/relay/delivery_store.hpp"
#include "bgworker/relay/destination_config.hpp"
#include "bgworker/relay/endpoint_store.hpp"
#include "bgworker/relay/log_reader.hpp"
#include "bgworker/relay/transaction_store.hpp"
#include "core/relay/relay.hpp"
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
// Pause between looks whether expressions that could not be evaluated can be by now.
static constexpr long milliseconds_to_look_again = 10'000;
// Pause before the next look while events wait for those of another node.
static constexpr int milliseconds_held = 50;
// Pause before the next look at what another relay reads.
static constexpr int milliseconds_others_read = 1;
// Rows made due in one transaction.
static constexpr int hurried_at_once = 1000;

// Expressions of a destination may catch a cancellation, but not what die() does.
static volatile sig_atomic_t may_catch_cancellation = false;

struct Home {
    SystemClock clock;
    DestinationConfig config;
    DestinationConfig new_config;
    Destination destination;  // outlives the relay's sink, which refers to it
    Relay relay;
    Snapshot look;                       // of the last scan for a window
    std::vector<std::int64_t> recorded;  // positions of events that are in outbox.delivery
    bool cursor_lost = false;            // an operator moved it, or another relay took it
    bool expressions_fail = false;       // so the destination is misconfigured
    bool shards_arrive = false;          // so other relays must look at the log themselves
    std::uint64_t failed_attempts_shown = 0;
    std::uint64_t failed_attempts_logged = 0;
    std::string question;  // of the sink, about endpoints
    EndpointAnswerBuilder answer;
    SinkReport report{};
    LineBudget library_lines{};

    explicit Home(DeliveryStats& stats) : relay(clock, stats, random_seed()) {}
};

static Home* home = nullptr;
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
    const int descriptor = home->relay.started() ? home->relay.pipeline().descriptor() : -1;
    if (descriptor >= 0)
        AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, descriptor, nullptr, nullptr);
}

// Starts over from the cursor with a new sink. Events in flight are given up and sent again.
static std::optional<Error> restart_relay() {
    home->relay.stop();
    home->config = home->new_config;
    Result<Destination> destination = home->config.destination();
    if (!destination)
        return destination.error();
    home->destination = std::move(destination.value());
    home->destination.identity = std::to_string(GetSystemIdentifier()) + '.' + home->config.source +
                                 '.' + std::to_string(home->relay.cursor().number);
    Result<std::unique_ptr<Sink>> sink = create_sink({home->destination, home->clock});
    if (!sink)
        return sink.error();
    Pipeline::Limits limits = home->config.limits;
    limits.receipts = home->destination.receipts;
    home->relay.start(
        traced(std::move(sink.value()), home->config.tracing, {home->destination, home->clock}),
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
    return {my_name(), home->config.owner, home->config.expressions()};
}

// Begins to evaluate expressions. Returns false, and stops the relay, if they cannot be.
static bool begin_evaluating(Expressions& evaluation) {
    const char* trouble = evaluation.begin();
    home->expressions_fail = trouble != nullptr;
    if (trouble == nullptr)
        return true;
    home->relay.stop();
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
    if (!home->expressions_fail)
        return false;
    begin_work("checking expressions");
    Expressions evaluation = expressions();
    const bool work = evaluation.begin() == nullptr;
    evaluation.end();
    end_work();
    return work;
}

// Applies decisions of operators: the position of the cursor, whether the destination is paused,
// which keys are held.
static void follow_operators(const CursorState& state) {
    home->relay.follow_operator(state.paused);
    home->relay.follow_resumes(state.resumed);
    load_held_keys(my_name(), home->relay.pipeline());
}

// Reads the configuration, and starts over if it or the cursor changed. Ends the process if the
// destination does not exist.
static void configure() {
    begin_work_on_changes("reading the configuration");
    const Oid server = shared->slots[my_slot].object;
    const bool exists = load_config(server, home->new_config) && lock_extension("pg_outbox");
    if (!exists) {
        end_work();
        proc_exit(0);
    }
    set_my_name(home->new_config.name.c_str());
    may_catch_cancellation = home->new_config.expressions().any();
    home->relay.set_intervals({.poll_min = milliseconds(settings::poll_min),
                               .poll_max = milliseconds(settings::poll_max),
                               .save = milliseconds(settings::cursor_flush_interval)});

    lock_tables();
    SPI_connect();
    bool starts_over = !home->relay.started() || !(home->new_config == home->config);
    if (!look_at_cursor().ours || (starts_over && !wait_for_cursor())) {
        if (!take_cursor(server, home->relay.cursor())) {
            end_sql_work();
            proc_exit(0);
        }
        starts_over = true;
    }
    home->cursor_lost = false;
    if (starts_over) {
        begin_deliveries(my_name(), home->relay.cursor(), home->recorded);
        start_over();
    }
    if (home->relay.started())
        follow_operators(look_at_cursor());
    end_sql_work();
}

// ---------------------------------------------------------------------------------------------
// Reading
// ---------------------------------------------------------------------------------------------

static void open_window(int64 count) {
    const bool several = count > 1;
    run_core([several] { home->relay.window_found(home->look, several); });
    // The relay looks again after Relay::gather_time in any case. So the next commit need not wake
    // it, which both would pay for.
    if (several)
        must_look_again();
    tell_keeper_of_progress();
}

// Needs a transaction. Returns whether there is a window to read.
static bool look_for_window() {
    Relay& relay = home->relay;
    const bool shares = !home->shards_arrive && !home->config.expressions().any();
    const int64 count =
        scan_window(reader, relay.frontier(), relay.settled_before(), shares, home->look);
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
    home->shards_arrive = any_shard_arrives();
    if (!home->shards_arrive)
        return false;
    SPI_connect();
    const bool waits = shards_hold(my_name());
    if (!waits)  // keys may have taken the place of the destination
        load_held_keys(my_name(), home->relay.pipeline());
    SPI_finish();
    return waits;
}

static void block_read(ReadResult result) {
    const bool end_of_window = result == ReadResult::end_of_window;
    if (end_of_window)
        forget_window();
    run_core(
        [end_of_window] { home->relay.block_read(end_of_window, last_position_read(reader)); });
}

// Takes the next window from other relays. Returns false if this relay must read it.
static bool take_window_from_others() {
    const int64 count = take_window(reader, home->relay.frontier(), home->look);
    if (count > 0)
        open_window(count);
    if (count == 0)
        run_core([] { home->relay.nothing_found(home->look); });
    return count >= 0;
}

// Takes the next events from other relays. Returns false if this relay must read them.
static bool take_events_from_others() {
    EventBlock* block = nullptr;
    run_core([&block] { block = &home->relay.block(); });
    ReadResult result;
    switch (take_events(reader, home->destination.topics, home->recorded, *block, result)) {
        case Others::have_not_read:
            return false;
        case Others::are_reading:
            home->relay.reading_failed(milliseconds(milliseconds_others_read));
            return true;
        case Others::have_read:
            block_read(result);
            return true;
    }
    return false;
}

// Reads what other relays have read, without a transaction. Returns false if that is not enough.
static bool read_from_others() {
    if (home->config.expressions().any())
        return false;
    if (!home->relay.in_window() && !take_window_from_others())
        return false;
    return !home->relay.in_window() || take_events_from_others();
}

static void read() {
    Relay& relay = home->relay;
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
        run_core([] { home->relay.nothing_found(home->look); });
        return;
    }
    EventBlock* block = nullptr;
    run_core([&block] { block = &home->relay.block(); });
    Expressions evaluation = expressions();
    if (evaluation.any() && !begin_evaluating(evaluation)) {
        end_work();
        return;
    }
    const ReadResult result =
        read_events(reader, relay.cursor().number, home->destination.topics, home->recorded,
                    evaluation.any() ? &evaluation : nullptr, *block);
    evaluation.end();
    end_work();
    if (result == ReadResult::log_is_gone)
        proc_exit(0);
    block_read(result);
}

// ---------------------------------------------------------------------------------------------
// Writing
// ---------------------------------------------------------------------------------------------

// Begins a transaction and locks the cursor. Returns false, with no transaction open, if the lock
// is not free.
static bool begin_settling(const char* activity) {
    if (!begin_sql_work(activity, "pg_outbox"))
        proc_exit(0);
    lock_tables();
    if (lock_cursor())
        return true;
    home->cursor_lost = !look_at_cursor().ours;
    end_sql_work();
    home->relay.cursor_is_busy();
    return false;
}

static void save() {
    if (!begin_settling("saving the cursor"))
        return;
    Relay& relay = home->relay;
    // The receipt of an event must be there before the cursor passes the event.
    save_receipts(my_name(), relay.pipeline().receipts());
    if (relay.may_save_cursor()) {
        save_cursor(relay.cursor(), relay.stats(), relay.outage_to_save());
        forget_transactions(my_name(), relay.passed_transactions());
    }
    end_sql_work();
    tell_keeper_of_progress();
    if (relay.saved())
        XLogFlush(XactLastCommitEnd);
}

static void warn_of_duplicates(const Recovered& found) {
    if (found.doubtful > 0)
        ereport(WARNING,
                (errmsg("destination \"%s\" does not know any more whether it has %lld events",
                        NameForLog(my_name()).text, static_cast<long long>(found.doubtful)),
                 errdetail("They are delivered from the database's cursor on, and some may arrive "
                           "twice."),
                 errhint("The offsets of the group \"pg_outbox.%s\" are gone: they expired, or "
                         "were deleted.",
                         line_from_outside(home->destination.identity))));
    if (found.unknown > 0)
        ereport(WARNING,
                (errmsg("destination \"%s\" has %lld transactions that this database does not know "
                        "of",
                        NameForLog(my_name()).text, static_cast<long long>(found.unknown)),
                 errdetail("The database has lost commits, as by a failover or a restored backup. "
                           "Events of these transactions may arrive twice."),
                 errhint("Synchronous replication prevents this for failovers.")));
}

// Takes over from an earlier relay. Events that it has delivered are not sent again.
static void recover() {
    if (!begin_settling("recovering transactions"))
        return;
    Relay& relay = home->relay;
    const Recovered found = recover_transactions(my_name(), relay.transactions().committed());
    begin_deliveries(my_name(), relay.cursor(), home->recorded);
    add_delivered_positions(my_name(), home->recorded);
    load_held_keys(my_name(), relay.pipeline());
    warn_of_duplicates(found);
    end_sql_work();
    run_core([] { home->relay.recovered(); });
}

// The destination has said that it is gone.
static void pause() {
    if (!begin_settling("pausing the destination"))
        return;
    char* why = line_from_outside(home->relay.pipeline().gone());
    ereport(LOG, (errmsg("destination \"%s\" is gone, and is paused: %s",
                         NameForLog(my_name()).text, why),
                  errhint("outbox.resume() continues.")));
    pause_destination(my_name(), home->relay.pipeline().gone());
    end_sql_work();
    home->relay.paused();
}

// The row must be on disk before the destination commits, also on the disks of synchronous standbys.
static void note() {
    if (!begin_settling("noting a transaction"))
        return;
    note_transaction(my_name(), *home->relay.transactions().to_note());
    SetConfigOption("synchronous_commit", "on", PGC_USERSET, PGC_S_OVERRIDE);
    end_sql_work();
    SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_OVERRIDE);
    run_core([] { home->relay.noted(); });
}

// The question of the sink is answered only by a commit.
static void consult() {
    if (!begin_settling("looking after endpoints"))
        return;
    run_core([] { home->question = home->relay.question(); });
    ask_endpoints(my_name(), home->question, home->answer);
    end_sql_work();
    run_core([] { home->relay.consulted(home->answer.take()); });
}

static void record() {
    if (!begin_settling("recording events in trouble"))
        return;
    record_events(my_name(), home->relay.pipeline());
    if (home->relay.has_transactions())
        settle_retries(my_name(), home->relay.passed_transactions(),
                       home->relay.transactions().committed());
    const Micros due = next_retry(my_name(), home->clock);
    end_sql_work();
    run_core([due] { home->relay.recorded(due); });
}

static void take_retries() {
    if (!begin_settling("taking retries"))
        return;
    Expressions evaluation = expressions();
    if (evaluation.any() && !can_evaluate(evaluation)) {
        end_sql_work();
        return;
    }
    Relay& relay = home->relay;
    if (relay.hurries())
        relay.hurried(hurry_retries(my_name(), hurried_at_once) < hurried_at_once);
    const std::size_t count =
        load_retries(my_name(), evaluation.any() ? &evaluation : nullptr, relay.pipeline());
    const Micros due = next_retry(my_name(), home->clock);
    end_sql_work();
    relay.retries_taken(count, due);
}

// ---------------------------------------------------------------------------------------------
// State and statistics
// ---------------------------------------------------------------------------------------------

static void log_condition(Condition::Kind kind) {
    const uint64 changes = home->relay.condition_log().changes();
    const uint64 attempts = my_stats().failures - home->failed_attempts_logged;
    home->failed_attempts_logged = my_stats().failures;
    const NameForLog cleaned(my_name());
    const char* const name = cleaned.text;
    char* why = line_from_outside(home->relay.reason());
    if (kind == Condition::Kind::partly)  // perhaps without a failed attempt
        set_my_error(why);
    ereport(LOG, (kind == Condition::Kind::works ? errmsg("destination \"%s\" works again", name)
                  : kind == Condition::Kind::throttled
                      ? errmsg("destination \"%s\" asks for fewer requests: %s", name, why)
                  : kind == Condition::Kind::partly
                      ? errmsg("destination \"%s\" failed in part: %s", name, why)
                      : errmsg("destination \"%s\" failed: %s", name, why),
                  errdetail("Attempts that failed since the last line: %llu; changes: %llu.",
                            static_cast<unsigned long long>(attempts),
                            static_cast<unsigned long long>(changes))));
    pfree(why);
}

static void show_failures(Condition::Kind kind) {
    const std::uint64_t failed_attempts = my_stats().failures;
    if (failed_attempts != home->failed_attempts_shown) {
        char* error = line_from_outside(home->relay.reason());
        set_my_error(error);
        pfree(error);
    }
    home->failed_attempts_shown = failed_attempts;
    bool line_is_due = false;
    run_core([&line_is_due] { line_is_due = home->relay.line_is_due(); });
    if (line_is_due)
        log_condition(kind);
}

static void log_library_lines() {
    for (const std::string& line : home->report.lines) {
        if (!home->library_lines.take(home->clock.now()))
            continue;
        char* text = line_from_outside(line);
        ereport(LOG, (errmsg("destination \"%s\": client library: %s", NameForLog(my_name()).text,
                             text)));
        pfree(text);
    }
}

static void show_report() {
    bool there_is_one = false;
    run_core([&there_is_one] { there_is_one = home->relay.pipeline().report(home->report); });
    log_library_lines();
    if (!there_is_one)
        return;
    const SinkReport& report = home->report;
    WorkerSlot& slot = shared->slots[my_slot];
    slot.round_trip_p50.store(report.round_trip_p50, std::memory_order_relaxed);
    slot.round_trip_p99.store(report.round_trip_p99, std::memory_order_relaxed);
    slot.client_queue.store(static_cast<int64>(report.queued), std::memory_order_relaxed);
    slot.connects.store(static_cast<int64>(report.connects), std::memory_order_relaxed);
    slot.disconnects.store(static_cast<int64>(report.disconnects), std::memory_order_relaxed);
}

static void show_progress() {
    const Relay& relay = home->relay;
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
    show_failures(kind);  // before the state, so that readers find its reason
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
    const Relay& relay = home->relay;
    const bool records = relay.started() && relay.has_records();
    const bool saves = relay.started() && relay.must_save_to_leave();
    if (records || saves) {
        SetConfigOption("lock_timeout", "100ms", PGC_SUSET, PGC_S_OVERRIDE);
        const TimeoutId too_late = RegisterTimeout(USER_TIMEOUT, [] { die(SIGTERM); });
        enable_timeout_after(too_late, milliseconds_to_leave);
        // Events that overtook what is not recorded would be delivered again.
        const Micros record_until = home->clock.now() + milliseconds(milliseconds_to_record);
        while (relay.has_records() && home->clock.now() < record_until)
            record();
        if (saves)
            save();
    }
    proc_exit(0);
}

static long timeout_until(Micros due) {
    if (due == never)
        return -1;
    const Micros left = due - home->clock.now();
    return left <= 0 ? 0 : static_cast<long>((left + 999) / 1000);
}

static void wait_for_something() {
    const Pipeline& pipeline = home->relay.pipeline();
    const Micros due =
        reload_is_due() || home->cursor_lost ? 0 : home->relay.deadline(work_is_due());
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
        run_core([&wish, committed] { wish = home->relay.next(committed); });
        switch (wish) {
            case Relay::Wish::recover:
                recover();
                break;
            case Relay::Wish::read:
                read();
                break;
            case Relay::Wish::take_retries:
                take_retries();
                break;
            case Relay::Wish::pause:
                pause();
                break;
            case Relay::Wish::note:
                note();
                break;
            case Relay::Wish::consult:
                consult();
                break;
            case Relay::Wish::record:
                record();
                break;
            case Relay::Wish::save:
                save();
                break;
            case Relay::Wish::wait:
                break;
        }
    } while (wish != Relay::Wish::wait && home->relay.started());
}

static void start() {
    reader = create_log_reader();
    run_core([] { home = new Home(my_stats()); });
    SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_OVERRIDE);
}

static void run() {
    configure();
    while (!told_to_leave) {
        const bool reloaded = handle_signals();
        if (reload_requested() || reloaded || home->cursor_lost || expressions_work_again())
            configure();
        if (!home->relay.started()) {
            wait_for_latch(home->expressions_fail ? milliseconds_to_look_again : -1,
                           "OutboxRelayMisconfigured");
            continue;
        }
        turn();
        if (!home->relay.started())
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
