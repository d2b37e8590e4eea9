// outbox.check_destination(): tests whether a destination can be used as it is configured.
//
// Code that talks to destinations does not run in sessions: its libraries stay out of them, and its
// waits could not be interrupted. So a session starts a background worker for one check, and reads
// the findings from a queue in shared memory. The worker knows a destination as its relay does, and
// has no transaction while it talks to it.
//
//   the session is cancelled, ends    the segment is detached, which terminates the worker
//   the worker dies                   the queue is detached, which ends the session's waiting
#include <algorithm>

#include "extension/base/outside_text.hpp"
#include "extension/base/pg.hpp"
#include "extension/base/shared_state.hpp"
#include "extension/destinations/check_request.hpp"

namespace outbox {

static void terminate_check(dsm_segment*, Datum worker) {
    TerminateBackgroundWorker(reinterpret_cast<BackgroundWorkerHandle*>(DatumGetPointer(worker)));
}

static void end_check(dsm_segment*, Datum slot) {
    shared->checks[DatumGetInt32(slot)] = InvalidOid;
}

static int checks_of(Oid role) {
    int count = 0;
    for (const std::atomic<Oid>& check : shared->checks)
        count += check == role;
    return count;
}

// Takes a slot until the segment is detached, at the latest at the end of the transaction. Two sessions
// of a role may take one at the same time, so they are counted afterwards.
static bool take_slot(dsm_segment* segment, Oid role) {
    for (int i = 0; i < SharedState::max_checks; i++) {
        Oid expected = InvalidOid;
        if (shared->checks[i].compare_exchange_strong(expected, role)) {
            on_dsm_detach(segment, end_check, Int32GetDatum(i));
            return true;
        }
    }
    return false;
}

static void count_check(dsm_segment* segment, Oid role) {
    if (shared == nullptr)  // if not preloaded
        return;
    const bool taken = take_slot(segment, role);
    if (taken && (superuser_arg(role) || checks_of(role) <= SharedState::max_checks_of_role))
        return;
    ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                    errmsg("too many destinations are being checked"),
                    errdetail("There can be %d checks at the same time, and %d of one role.",
                              SharedState::max_checks, SharedState::max_checks_of_role),
                    errhint("Try again when another check has ended.")));
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

// The handle is allocated for as long as the segment may live, until the transaction has ended.
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
    strlcpy(worker.bgw_type, check_worker_type, sizeof worker.bgw_type);
    strlcpy(worker.bgw_name, check_worker_type, sizeof worker.bgw_name);

    MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
    BackgroundWorkerHandle* handle = nullptr;
    const bool registered = RegisterDynamicBackgroundWorker(&worker, &handle);
    MemoryContextSwitchTo(before);
    if (!registered)
        ereport(
            ERROR,
            (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
             errmsg("could not check the destination: out of background worker slots"),
             errhint(
                 "Increase max_worker_processes, or try again when fewer workers are running.")));
    return handle;
}

// A message consists of '+' or '-', the subject, a null byte, and the detail.
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

}  // namespace outbox

// (server oid, topic text, caller name)
OUTBOX_FUNCTION(outbox_run_check) {
    using namespace outbox;
    if (PG_ARGISNULL(0) || PG_ARGISNULL(2))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("argument is null")));
    const Oid server = PG_GETARG_OID(0);
    const char* topic = PG_ARGISNULL(1) ? nullptr : text_to_cstring(PG_GETARG_TEXT_PP(1));
    const Oid caller = get_role_oid(NameStr(*PG_GETARG_NAME(2)), false);
    InitMaterializedSRF(fcinfo, 0);

    dsm_segment* segment = make_request(server, topic);
    count_check(segment, caller);
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
