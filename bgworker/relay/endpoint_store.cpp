#include "bgworker/relay/endpoint_store.hpp"

#include "bgworker/base/parameters.hpp"
#include "bgworker/base/query_result.hpp"
#include "bgworker/relay/event_copy.hpp"
#include "extension/base/boundary.hpp"
#include "extension/log/log.hpp"

namespace outbox {

static constexpr const char* source = "ask_endpoints";

// The columns of an event come first, in the order of the log, so that a row can be copied like one
// of the log.
static SPIPlanPtr plan_of_question() {
    static SPIPlanPtr plan = nullptr;
    if (plan != nullptr)
        return plan;
    Oid types[] = {NAMEOID, TEXTOID};
    SPIPlanPtr made = SPI_prepare(
        "SELECT a.position, a.xid, a.occurred_at, a.event_id, a.version, a.schema_version, "
        "       a.source_event_id, a.topic, a.aggregate_type, a.aggregate_id, a.event_type, "
        "       a.ordering_key, a.content_type, a.headers, a.payload, NULL::integer AS only_to, "
        "       a.kind, a.endpoint, a.url, a.topics, a.secret_name, a.paused, a.behind, "
        "       a.snapshot, a.count, a.due_in, a.attempts"
        "  FROM outbox_internal.ask_endpoints($1, $2::jsonb) AS a",
        lengthof(types), types);
    if (made == nullptr || SPI_keepplan(made) != 0)
        elog(ERROR, "could not prepare a question: %s", SPI_result_code_string(SPI_result));
    return plan = made;
}

struct Columns {
    int kind, endpoint, url, topics, secret_name, paused, behind, snapshot, count, due_in, attempts,
        xid;
};

static Columns columns_of_answer() {
    check_event_columns(source, SPI_tuptable->tupdesc);
    return {.kind = result_column(source, "kind", TEXTOID),
            .endpoint = result_column(source, "endpoint", NAMEOID),
            .url = result_column(source, "url", TEXTOID),
            .topics = result_column(source, "topics", TEXTOID),
            .secret_name = result_column(source, "secret_name", TEXTOID),
            .paused = result_column(source, "paused", BOOLOID),
            .behind = result_column(source, "behind", BOOLOID),
            .snapshot = result_column(source, "snapshot", TEXTOID),
            .count = result_column(source, "count", INT8OID),
            .due_in = result_column(source, "due_in", FLOAT8OID),
            .attempts = result_column(source, "attempts", INT4OID),
            .xid = result_column(source, "xid", XID8OID)};
}

static std::string_view text_at(uint64 row, int column) {
    bool is_null;
    const Datum value = result_value(row, column, &is_null);
    if (is_null)
        return {};
    const Bytes text = utf8_of(value);
    return {text.data, text.size};
}

static std::string_view name_at(uint64 row, int column) {
    bool is_null;
    const Datum value = result_value(row, column, &is_null);
    if (is_null)
        return {};
    const char* name = NameStr(*DatumGetName(value));
    const Bytes text = utf8_of(name, static_cast<int>(strlen(name)));
    return {text.data, text.size};
}

static bool boolean_at(uint64 row, int column) {
    bool is_null;
    const Datum value = result_value(row, column, &is_null);
    return !is_null && DatumGetBool(value);
}

static EndpointAnswerRow row_of_answer(uint64 row, const Columns& columns) {
    EndpointAnswerRow result;
    static_assert(std::is_trivially_destructible_v<EndpointAnswerRow>);
    result.kind = text_at(row, columns.kind);
    result.endpoint = name_at(row, columns.endpoint);
    result.url = text_at(row, columns.url);
    result.topics = text_at(row, columns.topics);
    result.secret_name = text_at(row, columns.secret_name);
    result.paused = boolean_at(row, columns.paused);
    result.behind = boolean_at(row, columns.behind);
    result.snapshot = text_at(row, columns.snapshot);
    bool is_null;
    Datum value = result_value(row, columns.count, &is_null);
    result.count = is_null ? 0 : DatumGetInt64(value);
    value = result_value(row, columns.due_in, &is_null);
    if (!is_null)
        result.due_in = DatumGetFloat8(value);
    value = result_value(row, columns.attempts, &is_null);
    result.attempts = is_null ? 0 : DatumGetInt32(value);
    value = result_value(row, columns.xid, &is_null);
    result.xid = is_null ? 0 : DatumGetUInt64(value);
    return result;
}

static void copy_event_of(TupleTableSlot* slot, EndpointAnswerBuilder& builder) {
    EventBlock* block = nullptr;
    run_core([&] { block = &builder.block(); });
    if (copy_event(slot, *block))
        return;
    run_core([&] {
        builder.next_block();
        block = &builder.block();
    });
    copy_event(slot, *block);  // an empty block has room, or it raises an error
}

void ask_endpoints(const char* destination, std::string_view question,
                   EndpointAnswerBuilder& builder) {
    NameData name;
    namestrcpy(&name, destination);
    Datum values[] = {NameGetDatum(&name), server_text(question)};
    const int code = SPI_execute_plan(plan_of_question(), values, nullptr, false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not ask about endpoints: %s", SPI_result_code_string(code));
    const Columns columns = columns_of_answer();
    TupleTableSlot* slot = MakeSingleTupleTableSlot(SPI_tuptable->tupdesc, &TTSOpsHeapTuple);
    for (uint64 i = 0; i < SPI_processed; i++) {
        const EndpointAnswerRow row = row_of_answer(i, columns);
        if (row.kind == EndpointAnswerBuilder::event) {
            ExecStoreHeapTuple(SPI_tuptable->vals[i], slot, false);
            copy_event_of(slot, builder);
        }
        run_core([&] { builder.add(row); });
    }
    ExecDropSingleTupleTableSlot(slot);
}

}  // namespace outbox
