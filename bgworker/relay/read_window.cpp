// outbox_internal.read_window() returns the events of a window as a relay reads them
// (sql/pg_outbox/window.sql). It calls the relay's reader, so that a test can compare it with the
// rule in SQL.
#include "bgworker/relay/log_reader.hpp"
#include "extension/base/boundary.hpp"
#include "extension/base/pg.hpp"
#include "extension/log/log.hpp"

namespace outbox {

namespace {
struct WindowRequest {
    Snapshot from;
    Snapshot to;
    Settled settled;
    TopicFilter topics;
    std::vector<std::int64_t> recorded;  // if empty, events in trouble belong to the window too
    EventBlock block;
};
}  // namespace

// An error jumps over the owners in it, so it belongs to the process; the next call uses it again.
static WindowRequest* request = nullptr;
static LogReader* window_reader = nullptr;

static const char* text_of_snapshot(Datum snapshot) {
    return DatumGetCString(OidFunctionCall1(F_PG_SNAPSHOT_OUT, snapshot));
}

static void make_request(const char* from, const char* settled, int64 settled_position,
                         const char* topics) {
    run_core([=]() -> std::optional<Error> {
        if (request == nullptr)
            request = new WindowRequest;
        request->from = Snapshot::parse(from).value();
        request->settled = {true, Snapshot::parse(settled).value(), settled_position};
        Result<TopicFilter> filter = TopicFilter::parse(topics);
        if (!filter)
            return filter.error();
        request->topics = std::move(filter.value());
        return std::nullopt;
    });
}

static void set_end(const char* to) {
    run_core([=] { request->to = Snapshot::parse(to).value(); });
}

// The keeper must not empty a segment between the scan of its index and the fetch of its rows.
static void lock_segments() {
    const LogRelations& log = log_relations();
    for (Oid segment : log.segments)
        LockRelationOid(segment, AccessShareLock);
}

static void put_places(ReturnSetInfo* result) {
    for (const Event& event : request->block.events()) {
        Datum values[] = {UInt64GetDatum(event.xid), Int64GetDatum(event.position)};
        bool nulls[] = {false, false};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
}

static void read_window(std::int32_t destination, ReturnSetInfo* result) {
    if (window_reader == nullptr)
        window_reader = create_log_reader();
    lock_segments();
    if (collect_window(window_reader, request->from, request->settled, request->to) < 0)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("the log is gone")));
    ReadResult read = ReadResult::more;
    while (read == ReadResult::more) {
        request->block.clear();
        read = read_events(window_reader, destination, request->topics, request->recorded, nullptr,
                           request->block);
        put_places(result);
    }
    // Frees the memory, or the file, of a large window.
    restart_reading(window_reader);
    delete request;
    request = nullptr;
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_read_window) {
    using namespace outbox;
    PreventCommandDuringRecovery(
        "outbox_internal.read_window()");  // snapshots list no transactions there
    InitMaterializedSRF(fcinfo, 0);
    const bool open_end = PG_ARGISNULL(1);
    for (int i = 0; i < PG_NARGS(); i++)
        if (PG_ARGISNULL(i) && i != 1)
            return 0;
    make_request(text_of_snapshot(PG_GETARG_DATUM(0)), text_of_snapshot(PG_GETARG_DATUM(2)),
                 PG_GETARG_INT64(3), text_to_cstring(PG_GETARG_TEXT_PP(5)));
    if (open_end)
        copy_active_snapshot(request->to);
    else
        set_end(text_of_snapshot(PG_GETARG_DATUM(1)));
    read_window(PG_GETARG_INT32(4), reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo));
    return 0;
}
