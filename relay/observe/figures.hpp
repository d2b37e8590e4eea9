// Figures of the process, for the HTTP server. The loop writes, threads of the server read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/delivery_stats.hpp"

namespace outbox::relay {

struct DestinationFigures {
    std::string name{};
    // "idle", "delivering", "throttled" and so on, as in outbox.status. "elsewhere" if another
    // relay serves the destination.
    std::string state{};
    std::string reason{};       // of the state, or empty; one line, no secrets
    bool held = false;          // this process has its lease
    std::int64_t position = 0;  // settled position, if held

    // `published` and `failures` go on from the saved cursor; others start when this process takes
    // the lease. Left out of the output unless held.
    std::uint64_t published = 0;
    std::uint64_t failures = 0;
    std::uint64_t bytes = 0;
    std::uint64_t throttled = 0;
    std::uint64_t in_flight = 0;
    std::uint64_t held_keys = 0;
    std::uint64_t suspects = 0;
    std::uint64_t lanes_down = 0;
    std::optional<double> request_limit{};  // requests a second
    std::optional<Micros> oldest_pending_age{};
    Micros failing_since = 0;  // Unix time, as the next one; 0 if it works
    Micros next_attempt = 0;   // 0 if it works, or one is under way
    std::optional<Micros> latency_p50{};
    std::optional<Micros> latency_p99{};
    LatencyBuckets::Figures latencies{};
    std::optional<Micros> round_trip_p50{};
    std::optional<Micros> round_trip_p99{};
    std::optional<std::uint64_t> client_queue{};
    std::optional<std::uint64_t> connects{};
    std::optional<std::uint64_t> disconnects{};
};

struct DatabaseFigures {
    std::string name{};     // in relay.toml
    std::string edition{};  // "native", "sql", or empty before the first connection
    std::string version{};  // of pg_outbox
    // Connected, and registered in outbox.relay with a lease that has not ended. Such a process
    // serves its destinations, or watches those of others.
    bool ready = false;
    bool pooled = false;    // leases only, no locks and no notifications
    bool resting = false;   // waits for a notification
    std::string trouble{};  // why it is not ready, or empty; one line, no secrets

    std::uint64_t connections = 0;  // open ones
    std::uint64_t connects = 0;     // since the start
    std::uint64_t disconnects = 0;  // connections that were lost or given up
    std::uint64_t statements = 0;   // since the start
    std::uint64_t renewals = 0;     // of its leases
    std::uint64_t takeovers = 0;    // leases that this process took
    std::uint64_t losses = 0;       // leases that it lost
    Micros renewed_at = 0;          // by the loop's clock, as in Figures::beat(), or 0
    std::vector<DestinationFigures> destinations{};
};

struct ProcessFigures {
    std::vector<DatabaseFigures> databases{};
    std::uint64_t turns = 0;  // of the loop
    bool stopping = false;    // after SIGTERM
};

class Figures {
  public:
    // For the loop. Call beat() in every turn and at least once a second, even when nothing
    // happens: /healthz fails when it has stopped. `now` is SystemClock::now().
    void beat(Micros now) noexcept { beat_.store(now, std::memory_order_relaxed); }
    // At a change, and otherwise once a second.
    void publish(ProcessFigures figures);

    // For readers.
    Micros last_beat() const noexcept { return beat_.load(std::memory_order_relaxed); }
    std::shared_ptr<const ProcessFigures> read() const;  // never nullptr

  private:
    std::atomic<Micros> beat_{0};
    mutable std::mutex mutex_;
    std::shared_ptr<const ProcessFigures> figures_ = std::make_shared<ProcessFigures>();
};

}  // namespace outbox::relay
