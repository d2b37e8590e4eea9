// The worker of outbox.check_destination() (extension/destinations/check_destination.cpp). It knows
// the destination as its relay does, and has no transaction while it talks to it.
#include <algorithm>

#include "bgworker/base/query_result.hpp"
#include "bgworker/base/worker.hpp"
#include "bgworker/relay/destination_config.hpp"
#include "bgworker/relay/event_copy.hpp"
#include "core/event.hpp"
#include "extension/base/boundary.hpp"
#include "extension/destinations/check_request.hpp"
#include "sinks/sink_loader.hpp"

namespace outbox {

static constexpr std::size_t max_targets = 50;
// Others wait for the worker of a check, whatever the timeouts of the destination are.
static constexpr Micros max_duration = 60'000'000;

struct DestinationCheck {
    SystemClock clock;
    DestinationConfig config;
    Destination destination;
    TextTemplate target;  // the name of the topic or queue of an event
    std::vector<std::string> targets;
    std::unique_ptr<Check> check;
    std::vector<Finding> findings;  // not yet sent to the session
    bool done = false;
};

static DestinationCheck* work = nullptr;
static shm_mq_handle* answers = nullptr;

static void answer(Size size, const char* message) {
    if (shm_mq_send(answers, size, message, false, true) != SHM_MQ_SUCCESS)
        proc_exit(0);  // the session has gone
}

static void send_findings() {
    for (const Finding& finding : work->findings) {
        StringInfoData message;
        initStringInfo(&message);
        appendStringInfoChar(&message, finding.ok ? '+' : '-');
        appendStringInfoString(&message, finding.subject.c_str());
        appendStringInfoChar(&message, '\0');
        appendStringInfoString(&message, finding.detail.c_str());
        answer(static_cast<Size>(message.len), message.data);
        pfree(message.data);
    }
    work->findings.clear();
}

static std::string in_one_line(const Error& error) {
    std::string text = error.message;
    if (!error.detail.empty())
        text += ": " + error.detail;
    if (!error.hint.empty())
        text += " (" + error.hint + ")";
    return text;
}

// ---- the destination ------------------------------------------------------------------------

// Reports a finding that needs no connection. If one of these is bad, no connection is made.
static void find(const char* subject, bool ok, std::string detail) {
    work->findings.push_back({subject, ok, std::move(detail)});
    work->done = work->done || !ok;
}

static bool has_targets() {
    return work->destination.sink != nullptr && work->destination.sink->target != nullptr;
}

static void read_options(bool exists, std::string_view topic) {
    if (!exists) {
        find("options", false,
             "no other session sees this destination: commit the transaction that creates it");
        return;
    }
    Result<Destination> destination = work->config.destination();
    if (!destination) {
        find("options", false, in_one_line(destination.error()));
        return;
    }
    work->destination = std::move(destination.value());
    if (has_targets())
        work->target = work->destination.options.name(*work->destination.sink->target);
    find("options", true, work->destination.url_text);
    if (!topic.empty() && !work->destination.topics.matches(topic))
        find("topics", false,
             "the option \"topics\" does not select \"" + std::string(topic) + "\"");
}

static void add_target(const Event& event) {
    const bool only_topic = event.event_type.empty();
    if (only_topic && !work->target.needs_only_topic())
        return;
    std::string name;
    work->target.append_to(name, event, work->destination.source);
    std::vector<std::string>& targets = work->targets;
    if (targets.size() < max_targets &&
        std::find(targets.begin(), targets.end(), name) == targets.end())
        targets.push_back(std::move(name));
}

static std::string_view text_column(uint64 row, int column) {
    bool is_null;
    const Datum value = result_value(row, column, &is_null);
    if (is_null)
        return {};
    const Bytes bytes = utf8_of(value);
    return {bytes.data, bytes.size};
}

// Makes the names of topics or queues that the template gives to events like those that may come.
static void find_targets(const char* topic) {
    if (work->target.is_constant()) {
        run_core([] { add_target(Event{}); });
        return;
    }
    auto* name = static_cast<Name>(palloc(sizeof(NameData)));
    namestrcpy(name, work->config.name.c_str());
    Oid types[] = {NAMEOID, TEXTOID};
    Datum values[] = {NameGetDatum(name), topic != nullptr ? CStringGetTextDatum(topic) : Datum{0}};
    const char nulls[] = {' ', topic != nullptr ? ' ' : 'n'};
    const int code = SPI_execute_with_args("SELECT * FROM outbox_internal.events_to_check($1, $2)",
                                           2, types, values, nulls, true, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not look for topics: %s", SPI_result_code_string(code));
    check_result("events_to_check", {TEXTOID, TEXTOID, TEXTOID});
    for (uint64 row = 0; row < SPI_processed; row++) {
        Event event;
        event.topic = text_column(row, 1);
        event.aggregate_type = text_column(row, 2);
        event.event_type = text_column(row, 3);
        run_core([&] { add_target(event); });
    }
}

static void read_destination(Oid server, const char* topic) {
    if (!begin_sql_work("reading the configuration", "pg_outbox"))
        proc_exit(0);
    const bool exists = load_config(server, work->config);
    const Bytes utf8 = utf8_of(CStringGetTextDatum(topic != nullptr ? topic : ""));
    run_core([&] { read_options(exists, {utf8.data, utf8.size}); });
    if (!work->done && has_targets())
        find_targets(topic);
    end_sql_work();
}

static void load_module() {
    Result<std::unique_ptr<Check>> check =
        create_check({work->destination, work->clock, work->targets});
    if (!check) {
        find("module", false, in_one_line(check.error()));
        return;
    }
    work->check = std::move(check.value());
    if (work->check == nullptr) {
        find("connection", true, std::string(work->destination.sink->check));
        work->done = true;
    }
}

// ---- the loop -------------------------------------------------------------------------------

static void leave_when_asked() {
    if (ProcDiePending)
        proc_exit(0);
    CHECK_FOR_INTERRUPTS();
}

static void wait_for_something(Micros until) {
    const Micros due = std::min(work->check->deadline(), until);
    const Micros left = std::max<Micros>(due - work->clock.now(), 0);
    WaitLatchOrSocket(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | WL_SOCKET_READABLE | WL_TIMEOUT,
                      work->check->descriptor(), static_cast<long>((left + 999) / 1000),
                      compat::wait_event("OutboxCheckNetwork"));
    ResetLatch(MyLatch);
}

static void run_check() {
    const Micros until = work->clock.now() + max_duration;
    while (!work->done) {
        leave_when_asked();
        run_core([] { work->done = work->check->step(work->clock.now(), work->findings); });
        if (!work->done && work->clock.now() >= until)
            run_core([] { find("connection", false, "the check did not end within a minute"); });
        send_findings();
        if (!work->done)
            wait_for_something(until);
    }
}

static void note_missing_targets() {
    if (work->check != nullptr && has_targets() && work->targets.empty())
        find("topics", false,
             "no topic is known yet: give one as the second argument of "
             "outbox.check_destination()");
}

}  // namespace outbox

extern "C" PGDLLEXPORT void outbox_check_main(Datum argument) {
    using namespace outbox;

    dsm_segment* segment = dsm_attach(DatumGetUInt32(argument));
    if (segment == nullptr)  // the session has gone
        return;
    shm_mq* queue = reinterpret_cast<shm_mq*>(queue_in(segment));
    shm_mq_set_sender(queue, MyProc);
    answers = shm_mq_attach(queue, segment, nullptr);
    const CheckRequest request = *request_in(segment);
    become_worker_without_slot(request.database);

    run_core([] { work = new DestinationCheck; });
    read_destination(request.server, request.has_topic ? topic_in(segment) : nullptr);
    if (!work->done)
        run_core(load_module);
    send_findings();
    run_check();
    run_core(note_missing_targets);
    send_findings();
    answer(0, nullptr);
}
