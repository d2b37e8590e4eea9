// The baseline of a program without pg_outbox that copies events into the inbox of another
// database: it reads the rows, then inserts them in batches, one transaction each, with several
// batches under way at any time.
//
//     loader CONNINFO-OF-LOG CONNINFO-OF-INBOX ROWS-PER-BATCH BATCHES-UNDER-WAY
//
// All parameters are made before the clock starts, so that only libpq and the server are measured.
// Prints {"events": ..., "seconds": ...}.
#include <array>
#include <chrono>
#include <string>

#include "connection.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

static constexpr const char* read_statement =
    "DECLARE rows BINARY NO SCROLL CURSOR FOR "
    "SELECT event_id, occurred_at, position, version, schema_version, source_event_id, topic, "
    "aggregate_type, aggregate_id, event_type, ordering_key, content_type, headers, payload "
    "FROM outbox.event ORDER BY xid, position";
static constexpr int columns = 14;

static constexpr const char* insert_statement =
    "INSERT INTO inbox.message (consumer_id, source, event_id, occurred_at, position, version, "
    "schema_version, source_event_id, topic, aggregate_type, aggregate_id, event_type, "
    "ordering_key, "
    "content_type, headers, payload) "
    "SELECT (SELECT id FROM inbox.consumer WHERE name = 'loader'), 'bench', e.* "
    "FROM unnest($1::uuid[], $2::timestamptz[], $3::bigint[], $4::bigint[], $5::integer[], "
    "$6::uuid[], "
    "$7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::jsonb[], "
    "$14::bytea[]) AS e ON CONFLICT DO NOTHING";

// One array per column, in binary format.
struct Batch {
    int rows;
    std::array<std::string, columns> arrays;
};

// The binary format of a value is the same in a row and in an array.
static std::string array_of(const Rows& rows, int column) {
    std::string array;
    const auto count = static_cast<std::uint64_t>(PQntuples(rows.get()));
    for (const std::uint64_t
             number :  // dimensions, whether there are nulls, type, size, first index
         {std::uint64_t{1}, std::uint64_t{1}, std::uint64_t{PQftype(rows.get(), column)}, count,
          std::uint64_t{1}})
        append_number(array, number, 4);
    for (int row = 0; row < PQntuples(rows.get()); row++) {
        if (PQgetisnull(rows.get(), row, column)) {
            append_number(array, UINT32_MAX, 4);
            continue;
        }
        const std::string_view value = field(rows, row, column);
        append_number(array, value.size(), 4);
        array += value;
    }
    return array;
}

static std::vector<Batch> read_log(const char* conninfo, int rows_per_batch) {
    Connection log(conninfo);
    log.execute("BEGIN");
    log.execute(read_statement);
    const std::string fetch = "FETCH " + std::to_string(rows_per_batch) + " FROM rows";
    std::vector<Batch> batches;
    while (true) {
        const Rows rows = log.execute(fetch.c_str());
        if (PQntuples(rows.get()) == 0)
            return batches;
        Batch& batch = batches.emplace_back();
        batch.rows = PQntuples(rows.get());
        for (int column = 0; column < columns; column++)
            batch.arrays[column] = array_of(rows, column);
    }
}

static void send(PGconn* connection, const Batch& batch) {
    std::array<const char*, columns> values;
    std::array<int, columns> sizes, formats;
    for (int column = 0; column < columns; column++) {
        values[column] = batch.arrays[column].data();
        sizes[column] = static_cast<int>(batch.arrays[column].size());
        formats[column] = 1;
    }
    // The synchronization point ends the transaction.
    if (!PQsendQueryPrepared(connection, "insert", columns, values.data(), sizes.data(),
                             formats.data(), 1) ||
        !PQpipelineSync(connection))
        die("insert", PQerrorMessage(connection));
}

// Reads the result of the insert, the null behind it, and the synchronization point.
static void await(PGconn* connection) {
    for (const ExecStatusType expected : {PGRES_COMMAND_OK, PGRES_PIPELINE_SYNC}) {
        const Rows result(PQgetResult(connection));
        if (PQresultStatus(result.get()) != expected)
            die("insert", PQerrorMessage(connection));
        if (expected == PGRES_COMMAND_OK)
            PQgetResult(connection);
    }
}

static void load(const char* log, const char* inbox, int rows_per_batch, std::size_t under_way) {
    const std::vector<Batch> batches = read_log(log, rows_per_batch);
    Connection connection(inbox);
    connection.prepare("insert", insert_statement);
    PQenterPipelineMode(connection.get());

    long events = 0;
    std::size_t sent = 0;
    const Clock::time_point start = Clock::now();
    for (const Batch& batch : batches) {
        while (sent < batches.size() && sent < under_way + (&batch - batches.data()))
            send(connection.get(), batches[sent++]);
        await(connection.get());
        events += batch.rows;
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::printf("{\"events\": %ld, \"seconds\": %.6f}\n", events, seconds);
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 5)
        outbox::bench::die("usage", "loader LOG INBOX ROWS-PER-BATCH BATCHES-UNDER-WAY");
    outbox::bench::load(argv[1], argv[2], std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10));
}
