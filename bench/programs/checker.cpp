// Measures how many statements about a new event id a server executes, one after the other in each
// session.
//
//   checker CONNINFO STATEMENT SESSIONS SECONDS PER-TRANSACTION [RATE]
//
// STATEMENT has one parameter, a uuid: of version 7 with the present time, or of version 4 if
// RANDOM_IDS is in the environment. With PER-TRANSACTION > 1 this number is sent at once, in one
// transaction. If the parameter is a uuid[], one statement takes all ids of a transaction, and the
// number printed is that of the ids. RATE limits the statements per second of all sessions together.
//
// Prints {"statements": ..., "seconds": ..., "first": ..., "last": ...}: the seconds per statement
// that a session waited for the server, in the first and in the last tenth of the time.
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "connection.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Arguments {
    const char* conninfo;
    const char* statement;
    int sessions;
    double seconds;
    int per_transaction;
    double rate;
    bool random_ids;
};

class Ids {
  public:
    explicit Ids(bool random) : random_(random), generator_(std::random_device{}()) {}

    std::string next() {
        std::string id;
        append_number(id, generator_(), 8);
        append_number(id, generator_(), 8);
        if (!random_) {
            const auto now = std::chrono::system_clock::now().time_since_epoch();
            std::string time;
            append_number(time,
                          static_cast<std::uint64_t>(
                              std::chrono::duration_cast<std::chrono::milliseconds>(now).count()),
                          6);
            id.replace(0, 6, time);
        }
        id[6] = static_cast<char>((id[6] & 0x0f) | (random_ ? 0x40 : 0x70));
        id[8] = static_cast<char>((id[8] & 0x3f) | 0x80);
        return id;
    }

  private:
    bool random_;
    std::mt19937_64 generator_;
};

// A part of the time, and the waits in it.
struct Share {
    long statements = 0;
    double waited = 0;
};
struct Counts {
    long statements = 0;
    Share first, last;
};

constexpr Oid uuid_type = 2950, uuid_array_type = 2951;

// The binary form of a uuid[].
static std::string array_of(Ids& ids, int count) {
    std::string array;
    append_number(array, 1, 4);  // dimensions
    append_number(array, 0, 4);  // no nulls
    append_number(array, uuid_type, 4);
    append_number(array, static_cast<std::uint64_t>(count), 4);
    append_number(array, 1, 4);  // lower bound
    for (int i = 0; i < count; i++) {
        append_number(array, 16, 4);
        array += ids.next();
    }
    return array;
}

static bool takes_array(PGconn* connection) {
    const Rows about(PQdescribePrepared(connection, "check"));
    return PQparamtype(about.get(), 0) == uuid_array_type;
}

static void send(PGconn* connection, const std::string& parameter) {
    const char* value = parameter.data();
    const int size = static_cast<int>(parameter.size()), format = 1;
    if (!PQsendQueryPrepared(connection, "check", 1, &value, &size, &format, 1))
        die("check", PQerrorMessage(connection));
}

// The statements of one pipeline are one transaction.
static void run_transaction(PGconn* connection, Ids& ids, int count, bool as_array) {
    const int statements = as_array ? 1 : count;
    for (int i = 0; i < statements; i++)
        send(connection, as_array ? array_of(ids, count) : ids.next());
    PQpipelineSync(connection);
    for (int i = 0; i < statements; i++) {
        const Rows result(PQgetResult(connection));
        if (PQresultStatus(result.get()) != PGRES_TUPLES_OK &&
            PQresultStatus(result.get()) != PGRES_COMMAND_OK)
            die("check", PQerrorMessage(connection));
        PQgetResult(connection);
    }
    const Rows sync(PQgetResult(connection));
}

static Counts run_session(const Arguments& arguments, const std::atomic<bool>& go) {
    Connection connection(arguments.conninfo);
    connection.prepare("check", arguments.statement);
    const bool as_array = takes_array(connection.get());
    PQenterPipelineMode(connection.get());
    Ids ids(arguments.random_ids);
    while (!go)
        std::this_thread::yield();

    Counts counts;
    const Clock::time_point start = Clock::now();
    const double rate = arguments.rate / arguments.sessions;
    while (true) {
        const double begun = Seconds(Clock::now() - start).count();
        if (begun >= arguments.seconds)
            return counts;
        if (rate > 0 && static_cast<double>(counts.statements) > rate * begun) {
            std::this_thread::sleep_for(
                Seconds(static_cast<double>(counts.statements) / rate - begun));
            continue;
        }
        run_transaction(connection.get(), ids, arguments.per_transaction, as_array);
        counts.statements += arguments.per_transaction;
        Share* share = begun < arguments.seconds / 10        ? &counts.first
                       : begun >= arguments.seconds * 9 / 10 ? &counts.last
                                                             : nullptr;
        if (share != nullptr) {
            share->statements += arguments.per_transaction;
            share->waited += Seconds(Clock::now() - start).count() - begun;
        }
    }
}

static void run(const Arguments& arguments) {
    std::vector<Counts> counts(arguments.sessions);
    std::vector<std::thread> threads;
    std::atomic<bool> go = false;
    for (Counts& mine : counts)
        threads.emplace_back([&] { mine = run_session(arguments, go); });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // time to connect
    go = true;
    for (std::thread& thread : threads)
        thread.join();

    Counts total;
    for (const Counts& each : counts) {
        total.statements += each.statements;
        total.first.statements += each.first.statements;
        total.first.waited += each.first.waited;
        total.last.statements += each.last.statements;
        total.last.waited += each.last.waited;
    }
    std::printf("{\"statements\": %ld, \"seconds\": %.6f, \"first\": %.9f, \"last\": %.9f}\n",
                total.statements, arguments.seconds,
                total.first.waited / static_cast<double>(total.first.statements),
                total.last.waited / static_cast<double>(total.last.statements));
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc < 6)
        outbox::bench::die("usage",
                           "checker CONNINFO STATEMENT SESSIONS SECONDS PER-TRANSACTION [RATE]");
    outbox::bench::run({argv[1], argv[2], std::atoi(argv[3]), std::atof(argv[4]),
                        std::atoi(argv[5]), argc > 6 ? std::atof(argv[6]) : 0,
                        std::getenv("RANDOM_IDS") != nullptr});
}
