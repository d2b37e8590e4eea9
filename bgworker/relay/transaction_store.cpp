#include "bgworker/relay/transaction_store.hpp"

#include <algorithm>

#include "bgworker/base/parameters.hpp"
#include "bgworker/base/query_result.hpp"
#include "core/position_ranges.hpp"
#include "extension/base/boundary.hpp"

namespace outbox {

static void run(const char* statement, int count, Oid* types, Datum* values) {
    const int code = SPI_execute_with_args(statement, count, types, values, nullptr, false, 0);
    if (code != SPI_OK_SELECT)
        elog(ERROR, "could not access outbox.transaction: %s", SPI_result_code_string(code));
}

Recovered recover_transactions(const char* destination, TransactionNumbers committed) {
    Oid types[] = {NAMEOID, INT8ARRAYOID};
    Datum values[] = {name_datum(destination), numbers_or_null(committed).datum()};
    run("SELECT doubtful, unknown FROM outbox_internal.recover_transactions($1, $2)",
        lengthof(types), types, values);
    check_result("recover_transactions", {INT8OID, INT8OID});
    return {DatumGetInt64(required_value("recover_transactions", 0, 1)),
            DatumGetInt64(required_value("recover_transactions", 0, 2))};
}

void add_delivered_positions(const char* destination, std::vector<std::int64_t>& recorded) {
    Oid types[] = {NAMEOID};
    Datum values[] = {name_datum(destination)};
    run("SELECT outbox_internal.delivered_positions($1)", lengthof(types), types, values);
    check_result("delivered_positions", {INT8OID});
    run_core([&] { recorded.reserve(recorded.size() + SPI_processed); });
    for (uint64 i = 0; i < SPI_processed; i++)  // does not allocate
        recorded.push_back(DatumGetInt64(required_value("delivered_positions", i, 1)));
    std::sort(recorded.begin(), recorded.end());
}

// The positions of a transaction, as texts of an int8multirange.
struct Ranges {
    const char* of_log;
    const char* of_retries;
};

static Ranges ranges_of(const Transaction& transaction) {
    static std::string of_log, of_retries;  // of the process: an error must not jump over them
    run_core([&] {
        std::vector<std::int64_t> log, retries;
        for (const Batch* batch : transaction.batches)
            for (const Event* event : batch->events)
                (event->retry ? retries : log).push_back(event->position);
        of_log = ranges_of(log);
        of_retries = ranges_of(retries);
    });
    return {of_log.c_str(), of_retries.c_str()};
}

CallOutcome note_transaction(const Transaction& transaction) {
    const Ranges ranges = ranges_of(transaction);
    Arguments arguments = my_lease();
    arguments.add(INT4OID, Int32GetDatum(static_cast<int32>(transaction.line)));
    arguments.add(INT8OID, Int64GetDatum(transaction.number));
    arguments.add(TEXTOID, CStringGetTextDatum(ranges.of_log));
    arguments.add(TEXTOID, CStringGetTextDatum(ranges.of_retries));
    return call("relay_note", "SELECT outbox_internal.relay_note($1, $2, $3, $4, $5, $6)",
                arguments, {TEXTOID});
}

}  // namespace outbox
