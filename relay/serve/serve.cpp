// The loop of outbox-relay. One thread runs everything in relay/serve and relay/database, and all
// sinks. It never blocks: statements and requests begin in one turn, and end in a later one.
//
// A turn first calls step() of each database, which starts what is due and gives each destination
// its turn. Then Poller::wait() waits for all connections and all sinks, and calls the owners of
// those that are ready. Answers of statements arrive in one of the two. The loop changes these objects:
//
//   Server               poller, budget of memory, published figures
//     DatabaseHome       control connection, lease, pool of connections, the scout
//       DestinationHome  token, cursor, the relay with its sink, events read ahead
//
// None of this has a lock, because no other thread touches it. Other threads only share:
//
//   Connector    a thread for each attempt to connect; hands over the connection (connector.hpp)
//   HttpServer   two threads; they read the figures that were published last (figures.hpp), and log
//   sinks        a library may have threads of its own, behind the sink's descriptor
//
// End. After SIGTERM the loop turns until each database has let its batches in flight end, has
// saved the cursors and given up its lease, or shutdown_timeout is over.
#include "relay/serve/serve.hpp"

#include <malloc.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <new>
#include <vector>

#include "relay/serve/database_home.hpp"

namespace outbox::relay {

namespace {

constexpr Micros figures_interval = seconds(1);

// Waits for SIGTERM and SIGINT.
class StopSignal final : private Watcher {
  public:
    explicit StopSignal(Poller& poller) : poller_(poller) {
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGTERM);
        sigaddset(&signals, SIGINT);
        // They must not end the process before they are read.
        pthread_sigmask(SIG_BLOCK, &signals, nullptr);
        descriptor_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
        poller_.watch(descriptor_, EPOLLIN, *this);
    }
    ~StopSignal() {
        poller_.forget(descriptor_);
        close(descriptor_);
    }
    StopSignal(const StopSignal&) = delete;
    StopSignal& operator=(const StopSignal&) = delete;

    bool has_come() const noexcept { return has_come_; }

  private:
    void ready() override {
        signalfd_siginfo signal;
        if (read(descriptor_, &signal, sizeof signal) == sizeof signal)
            has_come_ = true;
    }

    Poller& poller_;
    int descriptor_;
    bool has_come_ = false;
};

class Server {
  public:
    Server(const RelayConfig& config, Log& log, Figures& figures)
        : config_(config), log_(log), figures_(figures), memory_(config.memory), stop_(poller_) {
        for (const DatabaseConfig& database : config.databases)
            databases_.push_back(
                std::make_unique<DatabaseHome>(Process{config_, log_, poller_, clock_, memory_},
                                               database, connection_environment()));
    }

    int run() {
        while (!all(&DatabaseHome::has_ended)) {
            Micros next = publish_at_;
            for (const auto& database : databases_) {
                database->step(clock_.now());
                next = std::min(next, database->deadline());
            }
            const Micros now = clock_.now();
            figures_.beat(now);
            if (now >= publish_at_)
                publish(now);
            end_if_due();
            poller_.wait(std::min(next, publish_at_) - now);
            turns_++;
        }
        publish(clock_.now());
        return failed_ ? 1 : 0;
    }

  private:
    bool all(bool (DatabaseHome::*is)() const noexcept) const {
        return std::all_of(databases_.begin(), databases_.end(),
                           [is](const auto& database) { return (database.get()->*is)(); });
    }
    bool any(bool (DatabaseHome::*is)() const noexcept) const {
        return std::any_of(databases_.begin(), databases_.end(),
                           [is](const auto& database) { return (database.get()->*is)(); });
    }

    void end_if_due() {
        if (stopping_)
            return;
        failed_ = config_.once && any(&DatabaseHome::has_failed);
        const bool drained = config_.once && all(&DatabaseHome::is_drained);
        if (!stop_.has_come() && !failed_ && !drained)
            return;
        stopping_ = true;
        log_.info({}, stop_.has_come() ? "stops, because it was asked to"
                      : failed_
                          ? "stops, because a database cannot be reached or refuses its statements"
                          : "stops, because everything has been delivered");
        for (const auto& database : databases_)
            database->end();
    }

    void publish(Micros now) {
        publish_at_ = now + figures_interval;
        ProcessFigures figures;
        figures.turns = turns_;
        figures.stopping = stopping_;
        for (const auto& database : databases_)
            figures.databases.push_back(database->figures());
        figures_.publish(std::move(figures));
    }

    const RelayConfig& config_;
    Log& log_;
    Figures& figures_;
    const SystemClock clock_;
    MemoryBudget memory_;
    Poller poller_;
    StopSignal stop_;
    std::vector<std::unique_ptr<DatabaseHome>> databases_;
    Micros publish_at_ = 0;
    std::uint64_t turns_ = 0;
    bool stopping_ = false;
    bool failed_ = false;
};

}  // namespace

int serve(const RelayConfig& config, Log& log, Figures& figures) {
    int code = 1;
    // Otherwise glibc would keep blocks of events that are freed.
    mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
    try {
        code = Server(config, log, figures).run();
    } catch (const std::bad_alloc&) {
        // Events in flight are delivered again, from the saved cursors.
        log.write(LogLevel::error, {}, "out of memory");
    }
    // A thread of libpq that still tries to connect would run into the exit handlers.
    if (Connector::running() > 0)
        _exit(code);
    return code;
}

}  // namespace outbox::relay
