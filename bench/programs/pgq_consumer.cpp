// A consumer of PgQ that does nothing with the events: it reads batch after batch until none is
// left.
//
//   pgq_consumer CONNINFO QUEUE CONSUMER [SECONDS]
//
// Prints {"events": ..., "batches": ..., "seconds": ...}. With SECONDS it runs for that time: it
// polls ten times a second, and is the ticker as well.
#include <chrono>
#include <thread>

#include "connection.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

static void consume(const char* conninfo, const char* queue, const char* consumer, double limit) {
    Connection connection(conninfo);
    connection.prepare("next", "SELECT pgq.next_batch($1, $2)");
    connection.prepare("read", "SELECT * FROM pgq.get_batch_events($1::bigint)");
    connection.prepare("finish", "SELECT pgq.finish_batch($1::bigint)");
    connection.prepare("tick", "SELECT pgq.ticker($1)");

    long events = 0, batches = 0;
    const Clock::time_point start = Clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    while (true) {
        const Rows batch = connection.execute_prepared(
            "next", {Parameter::text(queue), Parameter::text(consumer)});
        if (PQgetisnull(batch.get(), 0, 0)) {
            if (seconds() >= limit)
                break;
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            connection.execute_prepared("tick", {Parameter::text(queue)});
            continue;
        }
        const Parameter id = Parameter::binary(field(batch, 0, 0));
        events += PQntuples(connection.execute_prepared("read", {id}).get());
        connection.execute_prepared("finish", {id});
        batches++;
    }
    std::printf("{\"events\": %ld, \"batches\": %ld, \"seconds\": %.6f}\n", events, batches,
                seconds());
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 4 && argc != 5)
        outbox::bench::die("usage", "pgq_consumer CONNINFO QUEUE CONSUMER [SECONDS]");
    outbox::bench::consume(argv[1], argv[2], argv[3], argc == 5 ? std::atof(argv[4]) : 0);
}
