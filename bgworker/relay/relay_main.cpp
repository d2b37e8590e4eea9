// The relay serves one destination: it reads the log window by window, hands the events to a sink,
// and saves how far it has come.
//
//   look     a short transaction: scan the next window, read a block of its events
//   step     no transaction: the sink sends, waits, confirms (core/pipeline)
//   settle   in memory: windows whose events are all confirmed move the cursor
//   flush    now and then, a short transaction: save the cursor
//   record   only when there is trouble, a short transaction: refused events, and those behind
//            them, go to outbox.delivery; retries that are due come from there
//
// Whatever fails inside the server ends the process; the keeper starts another, which goes on from
// the saved cursor. That costs duplicates, which are promised to be bounded, and never an event.
//
// All C++ objects belong to the process (`relay`), so that an error that jumps skips none of them.
#include <algorithm>
#include <deque>
#include <memory>

#include "bgworker/base/worker.hpp"
#include "bgworker/relay/cursor_store.hpp"
#include "bgworker/relay/delivery_store.hpp"
#include "bgworker/relay/destination_config.hpp"
#include "bgworker/relay/log_reader.hpp"
#include "core/pipeline/condition_log.hpp"
#include "core/pipeline/pipeline.hpp"
#include "extension/base/boundary.hpp"
#include "extension/base/outside_text.hpp"
#include "extension/base/settings.hpp"
#include "extension/base/wakeup.hpp"
#include "extension/log/log.hpp"
#include "sinks/sink_loader.hpp"

namespace outbox {

// The cursor is saved at the latest after so many events, and then on disk, so that a crash repeats
// no more of them. In between saves are not waited for.
static constexpr std::uint64_t max_unsaved_events = 100'000;

// While commits come so fast that a window holds several, the next one waits for more: every look
// takes a snapshot, and whoever wakes us for it pays for a system call.
static constexpr Micros gather_time = milliseconds(1);

// An operator is in the middle of something with our cursor: when to try again.
static constexpr Micros busy_time = milliseconds(100);
// For saving on the way out. What is not saved by then is delivered again.
static constexpr int milliseconds_to_leave = 500;
// Where there is trouble all the time, it is recorded so often, and retries are taken; or when there
// is so much of either.
static constexpr Micros trouble_pause = milliseconds(50);
static constexpr std::size_t many_records = 100;
static constexpr std::size_t many_retries = 100;
// Retries that are due and could not be had: when to look again.
static constexpr Micros retry_pause = seconds(1);

struct Relay {
    SystemClock clock;
    DestinationConfig config;
    DestinationConfig new_config;
    Destination destination;
    std::unique_ptr<Pipeline> pipeline;  // none: the destination cannot be used as configured

    // Reading. Windows that were opened and are not settled, by the snapshot each ends with;
    // reading goes on from `frontier`, the end of the last one.
    Snapshot frontier;
    Settled settled_before;
    Snapshot next_frontier;
    std::deque<Snapshot> open_windows;
    bool window_unread = false;  // the last one has events that are not read yet
    Backoff poll{1, 1, random_seed()};
    Micros next_look = 0;
    Micros gather_until = 0;

    // Settling.
    Cursor cursor;
    bool cursor_lost = false;  // somebody moved it, or took it
    bool unsaved = false;
    Micros saved_at = 0;
    Micros not_before = 0;                 // of saving and recording
    std::uint64_t delivered_at_flush = 0;  // when what was saved was known to be on disk
    std::uint64_t failed_attempts_shown = 0;
    std::uint64_t failed_attempts_logged = 0;
    ConditionLog condition_log;

    // Events in trouble.
    std::vector<std::int64_t> recorded;  // positions of the log that stand in outbox.delivery
    Micros recorded_at = 0;
    Micros retries_due = 0;
    Micros retries_taken_at = 0;  // 0: there were many
    bool hurries = false;  // what waited for something that was down is due
};

static Relay* relay = nullptr;
static LogReader* reader = nullptr;
static WaitEventSet* wait_set = nullptr;

static DeliveryStats& my_stats() {
    return shared->slots[my_slot].stats;
}

static const char* my_name() {
    return NameStr(shared->slots[my_slot].name);
}

static void core(void (*body)()) {
    const CoreError error = call_core(body);
    if (error.failed)
        raise(error);
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
    const int descriptor = relay->pipeline != nullptr ? relay->pipeline->descriptor() : -1;
    if (descriptor >= 0)
        AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, descriptor, nullptr, nullptr);
}

// Starts over from the cursor, with a new sink: what is in flight is given up and sent again.
static std::optional<Error> rebuild_pipeline() {
    relay->pipeline.reset();
    relay->config = relay->new_config;
    relay->open_windows.clear();
    relay->window_unread = false;
    forget_window();
    relay->next_look = 0;
    relay->frontier = relay->cursor.done;
    relay->settled_before = {};
    if (relay->cursor.foreign) {
        // Nothing is known of this cluster's transactions: the whole log is looked through.
        relay->frontier = Snapshot{};
        relay->settled_before = {true, relay->cursor.done, relay->cursor.position};
    }
    if (relay->cursor.upto)
        relay->settled_before = {true, *relay->cursor.upto, relay->cursor.position};

    Result<Destination> destination = relay->config.destination();
    if (!destination)
        return destination.error();
    relay->destination = std::move(destination.value());
    Result<std::unique_ptr<Sink>> sink = create_sink({relay->destination, relay->clock});
    if (!sink)
        return sink.error();
    Pipeline::Limits limits = relay->config.limits;
    limits.receipts = relay->destination.receipts;
    relay->pipeline = std::make_unique<Pipeline>(std::move(sink.value()), limits, relay->clock,
                                                 my_stats(), random_seed());
    return std::nullopt;
}

// In a transaction, which frees the text.
static void show_error(const char* error) {
    const char* line = line_from_outside(error);
    set_my_error(line);
    ereport(LOG, (errmsg("destination \"%s\": %s", my_name(), line)));
}

// From the cursor as it is now, which somebody may have moved.
static void start_over() {
    restart_reading(reader);
    const CoreError error = call_core([] { return rebuild_pipeline(); });
    if (error.failed) {
        show_error(error.message);
        set_my_state(WorkerState::misconfigured);
    }
    make_wait_set();
}

// What operators decide takes effect here: the position of the cursor, whether the destination is
// paused, which keys are held.
static void follow_operators(const CursorState& state) {
    relay->pipeline->pause(state.paused);
    load_held_keys(my_name(), *relay->pipeline);
    relay->retries_due = 0;
}

// Reads the configuration, and starts over when it or the cursor changed. Ends the process when
// there is no such destination.
static void configure() {
    begin_work_on_changes("reading the configuration");
    const Oid server = shared->slots[my_slot].object;
    const bool exists = load_config(server, relay->new_config) && lock_extension("pg_outbox");
    if (!exists) {
        end_work();
        proc_exit(0);
    }
    set_my_name(relay->new_config.name.c_str());
    relay->poll.set_limits(milliseconds(settings::poll_min), milliseconds(settings::poll_max));
    relay->next_look = 0;  // the limits it was made with may be others

    SPI_connect();
    bool starts_over = relay->pipeline == nullptr || !(relay->new_config == relay->config);
    if (!look_at_cursor(server).ours || (starts_over && !wait_for_cursor())) {
        if (!take_cursor(server, relay->cursor)) {
            end_sql_work();
            proc_exit(0);
        }
        starts_over = true;
    }
    relay->cursor_lost = false;
    if (starts_over) {
        begin_deliveries(my_name(), relay->cursor, relay->recorded);
        start_over();
    }
    if (relay->pipeline != nullptr)
        follow_operators(look_at_cursor(server));
    end_sql_work();
}

// ---------------------------------------------------------------------------------------------
// Look
// ---------------------------------------------------------------------------------------------

static EventBlock* block_at_hand = nullptr;

static void take_block() {
    core([] {
        if (block_at_hand == nullptr)
            block_at_hand = relay->pipeline->take_block();
    });
}

static void give_block() {
    core([] {
        if (block_at_hand->empty())
            relay->pipeline->put_back(std::exchange(block_at_hand, nullptr));
        else
            relay->pipeline->admit(std::exchange(block_at_hand, nullptr));
    });
}

static void open_window() {
    core([] {
        relay->pipeline->open_window();
        relay->open_windows.push_back(relay->next_frontier);
        relay->frontier = relay->next_frontier;
        relay->settled_before = {};
        relay->window_unread = true;
    });
}

// An empty window moves the frontier, and with nothing in flight the cursor; neither is worth a
// write.
static void skip_empty_window() {
    core([] {
        relay->frontier = relay->next_frontier;
        relay->settled_before = {};
        if (relay->open_windows.empty()) {
            relay->cursor.done = relay->frontier;
            relay->cursor.upto.reset();
            relay->cursor.foreign = false;
        }
    });
}

static void look_into_log() {
    if (!relay->window_unread)
        begin_looking();
    begin_work("reading the log");
    if (!relay->window_unread) {
        const int64 count =
            scan_window(reader, relay->frontier, relay->settled_before, relay->next_frontier);
        if (count < 0) {  // DROP EXTENSION; the keeper is on its way as well
            end_work();
            proc_exit(0);
        }
        if (count == 0) {
            end_work();
            skip_empty_window();
            relay->next_look = relay->clock.now() + relay->poll.next();
            return;
        }
        open_window();
        tell_keeper_of_progress();
        relay->gather_until = count > 1 ? relay->clock.now() + gather_time : 0;
        relay->poll.reset();
    }
    take_block();
    const ReadResult result = read_events(reader, relay->cursor.number, relay->destination.topics,
                                          relay->recorded, *block_at_hand);
    end_work();
    if (result == ReadResult::log_is_gone)
        proc_exit(0);

    give_block();
    if (result == ReadResult::end_of_window) {
        relay->window_unread = false;
        forget_window();
        relay->next_look = relay->clock.now() + relay->poll.next();
        core([] { relay->pipeline->close_window(last_position_read(reader)); });
    }
}

// ---------------------------------------------------------------------------------------------
// Settle and flush
// ---------------------------------------------------------------------------------------------

static void settle() {
    core([] {
        Pipeline& pipeline = *relay->pipeline;
        for (std::size_t n = pipeline.take_settled_windows(); n > 0; n--) {
            relay->cursor.done = std::move(relay->open_windows.front());
            relay->cursor.upto.reset();
            relay->cursor.position = std::max(relay->cursor.position, pipeline.highest_settled());
            relay->cursor.foreign = false;
            relay->open_windows.pop_front();
            relay->unsaved = true;
        }
        const std::optional<std::int64_t> position = pipeline.front_position();
        if (position && (!relay->cursor.upto || *position != relay->cursor.position)) {
            if (!relay->cursor.upto)
                relay->cursor.upto = relay->open_windows.front();
            relay->cursor.position = *position;
            relay->unsaved = true;
        }
    });
}

static bool flush_is_due() {
    return my_stats().delivered - relay->delivered_at_flush >= max_unsaved_events;
}

static bool something_to_save() {
    return (relay->unsaved && !relay->cursor.foreign) || !relay->pipeline->receipts().empty();
}

// When the cursor must be saved at the latest.
static Micros save_due() {
    if (!something_to_save())
        return never;
    const Micros due =
        flush_is_due() ? 0 : relay->saved_at + milliseconds(settings::cursor_flush_interval);
    return std::max(due, relay->not_before);
}

// A transaction under the lock of the cursor. False: it cannot be had now, and nothing has begun.
static bool begin_settling(const char* activity) {
    if (!begin_sql_work(activity, "pg_outbox"))
        proc_exit(0);
    if (lock_cursor())
        return true;
    relay->cursor_lost = !look_at_cursor(shared->slots[my_slot].object).ours;
    end_sql_work();
    relay->not_before = relay->clock.now() + busy_time;
    return false;
}

static void save() {
    if (!begin_settling("saving the cursor"))
        return;
    // Before the cursor passes an event, its receipt is there.
    save_receipts(my_name(), relay->pipeline->receipts());
    if (!relay->cursor.foreign)
        save_cursor(relay->cursor);
    end_sql_work();
    relay->pipeline->receipts_taken();
    tell_keeper_of_progress();
    relay->unsaved = false;
    relay->saved_at = relay->clock.now();
    if (flush_is_due()) {
        XLogFlush(XactLastCommitEnd);
        relay->delivered_at_flush = my_stats().delivered;
    }
}

// ---------------------------------------------------------------------------------------------
// Events in trouble
// ---------------------------------------------------------------------------------------------

static Micros record_due() {
    const Pipeline& pipeline = *relay->pipeline;
    if (pipeline.records().empty())
        return never;
    const bool is_urgent = pipeline.records().size() >= many_records || pipeline.starves();
    return std::max(relay->not_before, is_urgent ? 0 : relay->recorded_at + trouble_pause);
}

static void record() {
    if (!begin_settling("recording events in trouble"))
        return;
    record_events(my_name(), *relay->pipeline);
    relay->retries_due = next_retry(my_name(), relay->clock);
    end_sql_work();
    core([] { relay->pipeline->recorded(); });
    relay->recorded_at = relay->clock.now();
}

static Micros retry_due() {
    if (!relay->pipeline->wants_retries())
        return never;
    return std::max({relay->retries_due, relay->not_before, relay->retries_taken_at + trouble_pause});
}

// So many rows are made due in one transaction.
static constexpr int hurried_at_once = 1000;

static void take_retries() {
    if (!begin_settling("taking retries"))
        return;
    if (relay->hurries)
        relay->hurries = hurry_retries(my_name(), hurried_at_once) == hurried_at_once;
    const std::size_t count = load_retries(my_name(), *relay->pipeline);
    relay->retries_due = relay->hurries ? 0 : next_retry(my_name(), relay->clock);
    relay->retries_taken_at = count < many_retries ? relay->clock.now() : 0;
    if (count == 0 && !relay->hurries)  // what is due waits for something before it
        relay->retries_due = std::max(relay->retries_due, relay->clock.now() + retry_pause);
    end_sql_work();
}

// ---------------------------------------------------------------------------------------------
// Showing
// ---------------------------------------------------------------------------------------------

// What there is to say of the destination, in one word and a reason.
static Condition::Kind condition() {
    const Pipeline& pipeline = *relay->pipeline;
    const bool stuck = pipeline.only_suspects_left() && !pipeline.is_throttled();
    return pipeline.failures() > 0 || stuck ? Condition::Kind::failing
           : pipeline.lanes_down() > 0              ? Condition::Kind::partly
           : pipeline.is_throttled()                ? Condition::Kind::throttled
                                                    : Condition::Kind::works;
}

static const std::string& reason(Condition::Kind kind) {
    const Pipeline& pipeline = *relay->pipeline;
    return kind == Condition::Kind::partly ? pipeline.lane_error() : pipeline.last_error();
}

static void log_condition(Condition::Kind kind) {
    const uint64 changes = relay->condition_log.changes();
    const uint64 attempts = my_stats().failures - relay->failed_attempts_logged;
    relay->failed_attempts_logged = my_stats().failures;
    const char* name = my_name();
    char* why = line_from_outside(reason(kind));
    ereport(LOG,
            (kind == Condition::Kind::works ? errmsg("destination \"%s\" works again", name)
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
    if (failed_attempts != relay->failed_attempts_shown) {
        char* error = line_from_outside(reason(kind));
        set_my_error(error);
        pfree(error);
    }
    relay->failed_attempts_shown = failed_attempts;

    static Condition::Kind observed;  // a body of core() takes nothing
    static bool due;
    observed = kind;
    core([] {
        due = relay->condition_log.observe(
            relay->clock.now(), observed,
            observed == Condition::Kind::works ? std::string_view() : reason(observed));
    });
    if (due)
        log_condition(kind);
}

static void show_progress() {
    const Pipeline& pipeline = *relay->pipeline;
    WorkerSlot& slot = shared->slots[my_slot];
    slot.unsettled.store(pipeline.unsettled(), std::memory_order_relaxed);
    slot.held_keys.store(pipeline.held_keys(), std::memory_order_relaxed);
    slot.read_to.store(relay->frontier.xmax, std::memory_order_relaxed);
    slot.oldest.store(pipeline.oldest().value_or(0), std::memory_order_relaxed);
    slot.settled_position.store(relay->cursor.position, std::memory_order_relaxed);
    slot.suspects.store(pipeline.suspects(), std::memory_order_relaxed);
    slot.lanes_down.store(pipeline.lanes_down(), std::memory_order_relaxed);
    slot.request_limit.store(pipeline.request_limit(), std::memory_order_relaxed);
    const Condition::Kind kind = condition();
    set_my_state(pipeline.paused()                      ? WorkerState::paused
                 : kind == Condition::Kind::failing     ? WorkerState::backing_off
                 : kind == Condition::Kind::throttled   ? WorkerState::throttled
                 : pipeline.unsettled() > 0             ? WorkerState::delivering
                                                        : WorkerState::idle);
    show_failures(kind);
}

// ---------------------------------------------------------------------------------------------
// The loop
// ---------------------------------------------------------------------------------------------

// SIGTERM is left to die(), so that it also ends a wait for a lock. Between transactions there is
// time for one more: it saves the cursor, unless somebody is in the way.
static void leave_when_asked() {
    if (!ProcDiePending)
        return;
    ProcDiePending = false;
    const bool records = relay->pipeline != nullptr && !relay->pipeline->records().empty();
    const bool saves = relay->pipeline != nullptr && something_to_save();
    if (records || saves) {
        SetConfigOption("lock_timeout", "100ms", PGC_SUSET, PGC_S_OVERRIDE);
        const TimeoutId too_late = RegisterTimeout(USER_TIMEOUT, [] { die(SIGTERM); });
        enable_timeout_after(too_late, milliseconds_to_leave);
        if (records)
            record();
        if (saves)
            save();
    }
    proc_exit(0);
}

static long timeout_until(Micros due) {
    if (due == never)
        return -1;
    const Micros left = due - relay->clock.now();
    return left <= 0 ? 0 : static_cast<long>((left + 999) / 1000);
}

// When the log must be looked into: after a commit, or when the poll behind that is due.
static Micros look_due() {
    if (!relay->pipeline->has_room() || relay->pipeline->paused())
        return never;
    if (relay->window_unread)
        return 0;
    return work_is_due() ? relay->gather_until : relay->next_look;
}

static void wait_for_something() {
    const Micros due = reload_is_due() || relay->cursor_lost
                           ? 0
                           : std::min({relay->pipeline->deadline(), save_due(), look_due(),
                                       record_due(), retry_due(),
                                       relay->condition_log.deadline()});
    WaitEvent events[3];
    const int count = WaitEventSetWait(
        wait_set, timeout_until(due), events, lengthof(events),
        compat::wait_event(relay->pipeline->idle()          ? "OutboxRelayIdle"
                           : relay->pipeline->backing_off() ? "OutboxRelayBackoff"
                                                            : "OutboxRelayNetwork"));
    for (int i = 0; i < count; i++)
        if (events[i].events & WL_LATCH_SET)
            ResetLatch(MyLatch);
}

static void turn() {
    if (relay->clock.now() >= look_due())
        look_into_log();
    if (relay->clock.now() >= retry_due())
        take_retries();
    core([] { relay->pipeline->step(); });
    if (relay->pipeline->take_recovered()) {
        relay->hurries = true;
        relay->retries_due = 0;
    }
    if (relay->clock.now() >= record_due())
        record();
    settle();
    if (relay->clock.now() >= save_due())
        save();
    show_progress();
}

static void start() {
    reader = create_log_reader();
    core([] { relay = new Relay; });
    SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_OVERRIDE);
}

}  // namespace outbox

extern "C" PGDLLEXPORT void outbox_relay_main(Datum argument) {
    using namespace outbox;

    become_worker(argument, WakeRelays);
    start();
    configure();
    while (true) {
        leave_when_asked();
        const bool reloaded = handle_signals();
        if (reload_requested() || reloaded || relay->cursor_lost)
            configure();
        if (relay->pipeline == nullptr) {
            wait_for_latch(-1, "OutboxRelayMisconfigured");
            continue;
        }
        turn();
        wait_for_something();
    }
}
