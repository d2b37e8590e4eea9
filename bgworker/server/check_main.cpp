// outbox.check_destination(): whether a destination can be used as it is configured.
//
// What talks to destinations stays out of sessions, as libraries and as waiting that nobody can
// interrupt. So a session starts a background worker for one check, and reads from a queue in
// shared memory what it finds. The worker knows a destination as its relay does, and has no
// transaction while it talks to it.
//
//   all is found                      an empty message; the worker ends
//   the session is cancelled, ends    the segment is detached, which terminates the worker
//   the worker dies                   the queue is detached, which ends the session's waiting
#include <algorithm>

#include "boundary.hpp"
#include "core/event.hpp"
#include "server/destination_config.hpp"
#include "server/event_copy.hpp"
#include "server/outside_text.hpp"
#include "server/query_result.hpp"
#include "server/worker.hpp"
#include "sinks/sink_loader.hpp"

namespace outbox {

static constexpr Size queue_size = 16 * 1024;
static constexpr std::size_t max_targets = 50;
// In all databases together: each has a background worker that others may need, and a peer may keep
// it for as long as it likes.
static constexpr int max_checks = 4;

// In shared memory, in front of the queue.
struct CheckRequest {
    Oid database;
    Oid server;  // invalid: the default destination
    bool has_topic;
};

static constexpr Size queue_offset = MAXALIGN(sizeof(CheckRequest));
static constexpr Size topic_offset = queue_offset + queue_size;

static CheckRequest* request_in(dsm_segment* segment) {
    return static_cast<CheckRequest*>(dsm_segment_address(segment));
}
static char* queue_in(dsm_segment* segment) {
    return static_cast<char*>(dsm_segment_address(segment)) + queue_offset;
}
static char* topic_in(dsm_segment* segment) {
    return static_cast<char*>(dsm_segment_address(segment)) + topic_offset;
}

// ---------------------------------------------------------------------------------------------
// The session
// ---------------------------------------------------------------------------------------------

static void terminate_check(dsm_segment*, Datum worker) {
    TerminateBackgroundWorker(reinterpret_cast<BackgroundWorkerHandle*>(DatumGetPointer(worker)));
}

static void end_check(dsm_segment*, Datum) {
    shared->checks--;
}

// Until the segment is detached, which the end of the transaction does at the latest.
static void count_check(dsm_segment* segment) {
    if (shared == nullptr)  // not preloaded
        return;
    const bool too_many = ++shared->checks > max_checks;
    on_dsm_detach(segment, end_check, Datum{0});
    if (too_many)
        ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                        errmsg("too many destinations are being checked"),
                        errdetail("There can be %d checks at the same time.", max_checks),
                        errhint("Try again when others have ended.")));
}

static dsm_segment* make_request(Oid server, const char* topic) {
    dsm_segment* segment = dsm_create(topic_offset + (topic != nullptr ? strlen(topic) : 0) + 1, 0);
    CheckRequest* request = request_in(segment);
    request->database = MyDatabaseId;
    request->server = server;
    request->has_topic = topic != nullptr;
    strcpy(topic_in(segment), topic != nullptr ? topic : "");
    return segment;
}

// The handle lives as long as the segment may: until the transaction has ended.
static BackgroundWorkerHandle* start_check(dsm_segment* segment) {
    BackgroundWorker worker;
    memset(&worker, 0, sizeof worker);
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_ConsistentState;  // on a standby as well
    worker.bgw_restart_time = BGW_NEVER_RESTART;
    worker.bgw_notify_pid = MyProcPid;
    worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment));
    strlcpy(worker.bgw_library_name, compat::module_name, sizeof worker.bgw_library_name);
    strlcpy(worker.bgw_function_name, "outbox_check_main", sizeof worker.bgw_function_name);
    strlcpy(worker.bgw_type, "pg_outbox check", sizeof worker.bgw_type);
    strlcpy(worker.bgw_name, "pg_outbox check", sizeof worker.bgw_name);

    MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
    BackgroundWorkerHandle* handle = nullptr;
    const bool registered = RegisterDynamicBackgroundWorker(&worker, &handle);
    MemoryContextSwitchTo(before);
    if (!registered)
        ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                        errmsg("could not check the destination: out of background worker slots"),
                        errhint("Increase max_worker_processes, or try again when less goes on.")));
    return handle;
}

// A message is '+' or '-', the subject, a null, the detail.
static void put_finding(ReturnSetInfo* result, const char* message, Size size) {
    const char* end = message + size;
    const char* subject = message + 1;
    const char* detail = std::find(subject, end, '\0') + 1;
    Datum values[] = {text_from_outside({subject, static_cast<std::size_t>(detail - 1 - subject)}),
                      BoolGetDatum(message[0] == '+'),
                      text_from_outside({detail, static_cast<std::size_t>(end - detail)})};
    bool nulls[] = {false, false, false};
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static void read_findings(shm_mq_handle* queue, ReturnSetInfo* result) {
    while (true) {
        Size size;
        void* message;
        if (shm_mq_receive(queue, &size, &message, false) != SHM_MQ_SUCCESS)
            ereport(ERROR,
                    (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                     errmsg("the background worker that checked the destination ended early"),
                     errhint("The server log says why.")));
        if (size == 0)
            return;
        put_finding(result, static_cast<const char*>(message), size);
    }
}

// ---------------------------------------------------------------------------------------------
// The worker
// ---------------------------------------------------------------------------------------------

struct DestinationCheck {
    SystemClock clock;
    DestinationConfig config;
    Destination destination;
    std::vector<std::string> targets;
    std::unique_ptr<Check> check;
    std::vector<Finding> findings;  // that the session does not know yet
    bool done = false;
};

static DestinationCheck* work = nullptr;
static shm_mq_handle* answers = nullptr;

template <class Body>
static void core(Body body) {
    const CoreError error = call_core(body);
    if (error.failed)
        raise(error);
}

static void answer(Size size, const char* message) {
    if (shm_mq_send(answers, size, message, false, true) != SHM_MQ_SUCCESS)
        proc_exit(0);  // nobody wants to know any more
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

// Findings that need no connection. When one of them is bad, there is none.
static void find(const char* subject, bool ok, std::string detail) {
    work->findings.push_back({subject, ok, std::move(detail)});
    work->done = work->done || !ok;
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
    find("options", true, work->destination.url_text);
    if (!topic.empty() && !work->destination.topics.matches(topic))
        find("topics", false, "the option \"topics\" leaves out \"" + std::string(topic) + "\"");
}

static bool has_targets() {
    const SinkKind kind = work->destination.kind;
    return kind == SinkKind::pubsub || kind == SinkKind::sqs || kind == SinkKind::sns;
}

static void add_target(const Event& event) {
    const Destination& destination = work->destination;
    const bool only_topic = event.event_type.empty();
    if (only_topic && !destination.target.needs_only_topic())
        return;
    std::string name;
    destination.target.append_to(name, event, destination.source);
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

// The names that the template makes of events like those that may come.
static void find_targets(const char* topic) {
    if (work->destination.target.is_constant()) {
        core([] { add_target(Event{}); });
        return;
    }
    auto* name = static_cast<Name>(palloc(sizeof(NameData)));
    namestrcpy(name, work->config.name.c_str());
    Oid types[] = {NAMEOID, TEXTOID};
    Datum values[] = {NameGetDatum(name), topic != nullptr ? CStringGetTextDatum(topic) : Datum{0}};
    const char nulls[] = {' ', topic != nullptr ? ' ' : 'n'};
    const int code = SPI_execute_with_args("SELECT * FROM outbox_internal.events_to_check($1, $2)", 2, types,
                                           values, nulls, true, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not look for topics: %s", SPI_result_code_string(code));
    check_result("events_to_check", {TEXTOID, TEXTOID, TEXTOID});
    for (uint64 row = 0; row < SPI_processed; row++) {
        Event event;
        event.topic = text_column(row, 1);
        event.aggregate_type = text_column(row, 2);
        event.event_type = text_column(row, 3);
        core([&] { add_target(event); });
    }
}

static void read_destination(Oid server, const char* topic) {
    if (!begin_sql_work("reading the configuration", "pg_outbox"))
        proc_exit(0);
    const bool exists = load_config(server, work->config);
    const Bytes utf8 = utf8_of(CStringGetTextDatum(topic != nullptr ? topic : ""));
    core([&] { read_options(exists, {utf8.data, utf8.size}); });
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
        find("connection", true,
             work->destination.kind == SinkKind::pull ? "none: events wait for outbox.fetch()"
                                                      : "none: events are confirmed at once");
        work->done = true;
    }
}

// ---- the loop -------------------------------------------------------------------------------

static void leave_when_asked() {
    if (ProcDiePending)
        proc_exit(0);
    CHECK_FOR_INTERRUPTS();
}

static void wait_for_something() {
    const Micros due = work->check->deadline();
    const Micros left = due == never ? -1 : std::max<Micros>(due - work->clock.now(), 0);
    WaitLatchOrSocket(
        MyLatch,
        WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | WL_SOCKET_READABLE | (left >= 0 ? WL_TIMEOUT : 0),
        work->check->descriptor(), left < 0 ? -1 : static_cast<long>((left + 999) / 1000),
        compat::wait_event("OutboxCheckNetwork"));
    ResetLatch(MyLatch);
}

static void run_check() {
    while (!work->done) {
        leave_when_asked();
        core([] { work->done = work->check->step(work->clock.now(), work->findings); });
        send_findings();
        if (!work->done)
            wait_for_something();
    }
}

static void note_missing_targets() {
    if (work->check != nullptr && has_targets() && work->targets.empty())
        find("topics", false,
             "no topic is known yet: give one as the second argument of "
             "outbox.check_destination()");
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_run_check) {
    using namespace outbox;
    const Oid server = PG_GETARG_OID(0);
    const char* topic = PG_ARGISNULL(1) ? nullptr : text_to_cstring(PG_GETARG_TEXT_PP(1));
    InitMaterializedSRF(fcinfo, 0);

    dsm_segment* segment = make_request(server, topic);
    count_check(segment);
    shm_mq* queue = shm_mq_create(queue_in(segment), queue_size);
    shm_mq_set_receiver(queue, MyProc);
    BackgroundWorkerHandle* worker = start_check(segment);
    on_dsm_detach(segment, terminate_check, PointerGetDatum(worker));
    read_findings(shm_mq_attach(queue, segment, worker),
                  reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo));
    cancel_on_dsm_detach(segment, terminate_check, PointerGetDatum(worker));
    dsm_detach(segment);
    return Datum{0};
}

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

    core([] { work = new DestinationCheck; });
    read_destination(request.server, request.has_topic ? topic_in(segment) : nullptr);
    if (!work->done)
        core(load_module);
    send_findings();
    run_check();
    core(note_missing_targets);
    send_findings();
    answer(0, nullptr);
}
