// The relay of the usual outbox table: it claims rows with SKIP LOCKED under a token, publishes
// them, and marks them as published.
//
//   seed_relay CONNINFO row|batch SECONDS [follow]
//
// `row` marks one row per statement and transaction; `batch` is faster and marks all rows of a
// claim in one. Publishing costs nothing here. Stops when the table is drained or the time is over,
// and prints {"events": ..., "seconds": ...}. With `follow` it polls ten times a second until the
// time is over.
#include <chrono>
#include <string>
#include <thread>

#include "connection.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

static constexpr const char* claim_statement =
    "WITH cte AS ("
    " SELECT id FROM app_outbox"
    "  WHERE published_at IS NULL AND (next_retry_at IS NULL OR next_retry_at <= now())"
    "  ORDER BY occurred_at LIMIT 200 FOR UPDATE SKIP LOCKED)"
    "UPDATE app_outbox o SET lock_token = $1, locked_at = now() FROM cte WHERE o.id = cte.id "
    "RETURNING o.*";

static constexpr const char* mark_row_statement =
    "UPDATE app_outbox SET published_at = now(), lock_token = NULL, locked_at = NULL "
    "WHERE id = $1 AND lock_token = $2";

static constexpr const char* mark_batch_statement =
    "UPDATE app_outbox SET published_at = now(), lock_token = NULL, locked_at = NULL "
    "WHERE id = ANY ($1) AND lock_token = $2";

static void mark_rows(Connection& connection, const Rows& claimed, const char* token) {
    for (int i = 0; i < PQntuples(claimed.get()); i++)
        connection.execute_prepared(
            "mark_row", {Parameter::binary(field(claimed, i, 0)), Parameter::text(token)});
}

static void mark_batch(Connection& connection, const Rows& claimed, const char* token) {
    static constexpr int uuid_oid = 2950;
    const int count = PQntuples(claimed.get());
    std::string ids;
    for (const int number : {1, 0, uuid_oid, count, 1})  // dimensions, nulls, type, size, first
        append_number(ids, static_cast<std::uint64_t>(number), 4);
    for (int i = 0; i < count; i++) {
        const std::string_view id = field(claimed, i, 0);
        append_number(ids, id.size(), 4);
        ids += id;
    }
    connection.execute_prepared("mark_batch", {Parameter::binary(ids), Parameter::text(token)});
}

static void relay(const char* conninfo, bool by_row, double limit, bool follow) {
    Connection connection(conninfo);
    connection.prepare("claim", claim_statement);
    connection.prepare("mark_row", mark_row_statement);
    connection.prepare("mark_batch", mark_batch_statement);

    long events = 0;
    double seconds = 0;
    const Clock::time_point start = Clock::now();
    for (long batch = 1; seconds < limit; batch++) {
        const std::string token = "relay-" + std::to_string(batch);
        const Rows claimed = connection.execute_prepared("claim", {Parameter::text(token.c_str())});
        if (PQntuples(claimed.get()) == 0) {
            if (!follow)
                break;
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        (by_row ? mark_rows : mark_batch)(connection, claimed, token.c_str());
        events += PQntuples(claimed.get());
        seconds = std::chrono::duration<double>(Clock::now() - start).count();
    }
    std::printf("{\"events\": %ld, \"seconds\": %.6f}\n", events, seconds);
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 4 && argc != 5)
        outbox::bench::die("usage", "seed_relay CONNINFO row|batch SECONDS [follow]");
    outbox::bench::relay(argv[1], std::string_view(argv[2]) == "row", std::atof(argv[3]),
                         argc == 5);
}
