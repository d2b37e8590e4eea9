// Relays outside the server that publish nothing: they fetch from a pull destination and
// acknowledge.
//
//   fetcher CONNINFO DESTINATION FETCHERS EVENTS
//
// Stops when EVENTS events are acknowledged, and prints {"events": ..., "seconds": ...}.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "connection.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

// Pause when other fetchers have all lanes that have events.
static constexpr auto pause = std::chrono::milliseconds(1);

static void fetch(const char* conninfo, const char* destination, long limit,
                  std::atomic<long>& settled) {
    Connection connection(conninfo);
    connection.prepare("fetch", "SELECT * FROM outbox.fetch($1::name)");
    connection.prepare("ack", "SELECT outbox.ack($1::uuid)");
    while (settled < limit) {
        const Rows events = connection.execute_prepared("fetch", {Parameter::text(destination)});
        if (PQntuples(events.get()) == 0) {
            std::this_thread::sleep_for(pause);
            continue;
        }
        connection.execute_prepared("ack", {Parameter::binary(field(events, 0, 0))});
        settled += PQntuples(events.get());
    }
}

static void relay(const char* conninfo, const char* destination, int fetchers, long limit) {
    std::atomic<long> settled = 0;
    std::vector<std::thread> threads;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < fetchers; i++)
        threads.emplace_back(fetch, conninfo, destination, limit, std::ref(settled));
    for (std::thread& thread : threads)
        thread.join();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::printf("{\"events\": %ld, \"seconds\": %.6f}\n", settled.load(), seconds);
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 5)
        outbox::bench::die("usage", "fetcher CONNINFO DESTINATION FETCHERS EVENTS");
    outbox::bench::relay(argv[1], argv[2], std::atoi(argv[3]), std::atol(argv[4]));
}
