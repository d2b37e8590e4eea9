// Measures the time from commit to arrival for a system whose consumer is another process.
//
//   CONSUMER | latency_beside CONNINFO RATE SECONDS SESSIONS STATEMENT
//
// The consumer prints "ready", and then the number of each event as soon as it has it, a line each.
// Commits RATE transactions per second in SESSIONS sessions; each executes STATEMENT, in which $1 is the
// number of an account and $2 the payload. Prints the same as latency, to which this adds the way of a
// line through a pipe.
#include <cstring>

#include "paced.hpp"

namespace outbox::bench {

static bool read_line(char (&line)[64]) {
    return std::fgets(line, sizeof line, stdin) != nullptr;
}

static void receive(Run& run) {
    char line[64];
    while (read_line(line))
        note_arrival(run, std::strtoull(line, nullptr, 10), Clock::now());
}

static void measure(const char* conninfo, double rate, double seconds, std::size_t sessions,
                    const char* statement) {
    char line[64] = "";
    while (std::strcmp(line, "ready\n") != 0)
        if (!read_line(line))
            die("consumer", "it has ended");
    const auto count = static_cast<std::size_t>(rate * seconds);
    Run run(count, count);
    std::thread(receive, std::ref(run)).detach();
    produce_all(run, conninfo, rate, sessions, statement);
    std::_Exit(0);  // the receiver still reads
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 6)
        outbox::bench::die("usage", "latency_beside CONNINFO RATE SECONDS SESSIONS STATEMENT");
    outbox::bench::measure(argv[1], std::atof(argv[2]), std::atof(argv[3]),
                           std::strtoull(argv[4], nullptr, 10), argv[5]);
}
