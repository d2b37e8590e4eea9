// Shared by the latency programs: commits events at a pace and notes when each of them arrives,
// on one clock.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "connection.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using std::chrono::duration;

struct Event {
    Time sent;
    Time returned;
    std::atomic<Time> arrived;
};

struct Run {
    // `wanted`: events that can arrive.
    Run(std::size_t count, std::size_t can_arrive) : events(count), wanted(can_arrive) {}

    std::vector<Event> events;
    std::size_t wanted;
    std::atomic<std::size_t> arrivals = 0;  // of events that had not arrived before
    std::atomic<std::size_t> repeated = 0;
};

// Returns the event's number, the member "number" of the payload.
inline std::size_t number_in(std::string_view body) {
    static constexpr std::string_view name = "\"number\":";
    const std::size_t at = body.find(name);
    if (at == std::string_view::npos)
        die("receiver", "an event without a number");
    return std::strtoull(body.data() + at + name.size(), nullptr, 10);
}

inline void note_arrival(Run& run, std::size_t number, Time now) {
    if (number >= run.events.size())
        die("receiver", "an event nobody sent");
    Time none{};
    if (run.events[number].arrived.compare_exchange_strong(none, now))
        run.arrivals++;
    else
        run.repeated++;
}

// ---------------------------------------------------------------------------------------------
// The producer
// ---------------------------------------------------------------------------------------------

inline std::string payload_of(std::size_t number) {
    std::string payload = "{\"number\": " + std::to_string(number) + ", \"title\": \"";
    payload.append(512 - payload.size() - 2, 'x');
    return payload + "\"}";
}

// Statements of a transaction: $1 is the number of an account, $2 the payload.
inline constexpr const char* enqueue =
    "SELECT outbox.enqueue('account', $1, 'AccountChanged', $2::jsonb, 1)";
inline constexpr const char* change_and_enqueue =
    "WITH changed AS (UPDATE account SET version = version + 1 WHERE id = $1 RETURNING version) "
    "SELECT outbox.enqueue('account', $1::text, 'AccountChanged', $2::jsonb, version) FROM changed";

// Commits events first, first + step, and so on. Each has its time; a late one does not delay
// others.
inline void produce(Run& run, const char* conninfo, Time start, double rate, const char* statement,
                    std::size_t first, std::size_t step) {
    Connection connection(conninfo);
    connection.prepare("produce", statement);
    for (std::size_t number = first; number < run.events.size(); number += step) {
        const std::string id = std::to_string(number % 10'000 + 1);
        const std::string payload = payload_of(number);
        std::this_thread::sleep_until(start +
                                      std::chrono::duration_cast<Clock::duration>(
                                          duration<double>(static_cast<double>(number) / rate)));
        connection.execute("BEGIN");
        connection.execute_prepared(
            "produce", {Parameter::text(id.c_str()), Parameter::text(payload.c_str())});
        run.events[number].sent = Clock::now();
        connection.execute("COMMIT");
        run.events[number].returned = Clock::now();
    }
}

// ---------------------------------------------------------------------------------------------
// The figures
// ---------------------------------------------------------------------------------------------

inline void print_percentiles(const char* name, std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    const auto at = [&](double fraction) {
        return values[static_cast<std::size_t>(fraction * static_cast<double>(values.size() - 1))];
    };
    std::printf(
        "\"%s\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}, ",
        name, at(0.5), at(0.9), at(0.99), at(0.999), at(1.0));
}

inline void print(const Run& run, Time start) {
    const auto micros = [](Clock::duration d) { return duration<double, std::micro>(d).count(); };
    std::vector<double> since_sent, since_returned, commits;
    Time last = start, last_arrival = start;
    for (const Event& event : run.events) {
        const Time arrived = event.arrived;
        last = std::max(last, event.returned);
        last_arrival = std::max(last_arrival, arrived);
        if (arrived == Time{} || event.sent < start + std::chrono::seconds(1))
            continue;
        since_sent.push_back(micros(arrived - event.sent));
        since_returned.push_back(micros(arrived - event.returned));
        commits.push_back(micros(event.returned - event.sent));
    }
    if (since_sent.empty())
        die("receiver", "nothing arrived");
    std::printf("{");
    print_percentiles("since_commit_sent", since_sent);
    print_percentiles("since_commit_returned", since_returned);
    print_percentiles("commit", commits);
    const auto rate_until = [&](std::size_t events, Time end) {
        return static_cast<double>(events) / duration<double>(end - start).count();
    };
    std::printf("\"rate\": %.1f, \"arrival_rate\": %.1f, \"missing\": %zu, \"repeated\": %zu}\n",
                rate_until(run.events.size(), last), rate_until(run.arrivals, last_arrival),
                run.wanted - run.arrivals, run.repeated.load());
}

// ---------------------------------------------------------------------------------------------
// All of it
// ---------------------------------------------------------------------------------------------

// Produces in these sessions, waits for the last events, but not for ever, and prints.
inline void produce_all(Run& run, const char* conninfo, double rate, std::size_t sessions,
                        const char* statement) {
    const Time start = Clock::now() + std::chrono::milliseconds(200);
    std::vector<std::thread> producers;
    for (std::size_t i = 0; i < sessions; i++)
        producers.emplace_back(produce, std::ref(run), conninfo, start, rate, statement, i,
                               sessions);
    for (std::thread& producer : producers)
        producer.join();
    const Time deadline = Clock::now() + std::chrono::seconds(30);
    while (run.arrivals < run.wanted && Clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    print(run, start);
    std::fflush(stdout);
}

}  // namespace outbox::bench
