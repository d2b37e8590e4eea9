// The servers that a sink talks to: those of the URL, those that a cluster sends it to, and the primary
// that the Sentinels name. Each has one connection, on which commands are pipelined.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "net/redis_connection.hpp"
#include "sinks/redis/options.hpp"

namespace outbox {

struct Job;
struct StreamLane;

// Commands of one purpose that were sent together, and whose answers come in this order.
struct Question {
    enum class Kind : std::uint8_t {
        primary,      // which server it is, of a Sentinel
        state,        // of a stream
        entries,      // the last ones of a stream
        transaction,  // to add events
        replicas,     // how many have what was added before
    };
    Kind kind;
    StreamLane* lane = nullptr;  // of `state` and `entries`
    Job* job = nullptr;          // of the kinds below it; nullptr if the job has ended
    std::size_t answers = 0;
    std::size_t taken = 0;    // of the answers
    std::size_t entries = 0;  // that were asked for
};

struct RedisServer {
    RedisServer(TransportConfig config, RedisLogin login, std::string name)
        : connection(std::move(config), std::move(login)), name(std::move(name)) {}

    RedisConnection connection;
    const std::string name;  // "host:port"
    std::deque<Question> questions{};
    bool is_sentinel = false;
    bool to_close = false;  // when what it is asked has been answered
};

class RedisServers {
  public:
    RedisServers(const RedisOptions& options, const Clock& clock);
    ~RedisServers();
    RedisServers(const RedisServers&) = delete;
    RedisServers& operator=(const RedisServers&) = delete;

    // Becomes readable when one of them has something to do.
    int descriptor() const noexcept { return epoll_; }
    Micros deadline() const noexcept;

    // The server for streams that no redirect was for: the primary; or a Sentinel, while it is not
    // known which one that is.
    RedisServer& entry();
    // A server that a redirect names; nullptr if that makes no sense, or there are too many.
    RedisServer* named(const RedisServer& by, const std::string& host, const std::string& port);
    // The next call of entry() returns another one, if there is one.
    void leave(const RedisServer& server) noexcept;
    void set_primary(RedisServer* server) noexcept { primary_ = server; }

    template <class Each>
    void for_each(Each each) {
        for (std::size_t i = 0; i < all_.size(); i++)  // named() may add some
            each(*all_[i]);
    }

    // Whether it is one of several that have parts of the streams.
    bool is_entry(const RedisServer& server) const noexcept;

  private:
    RedisServer* add(const std::string& host, const std::string& port, bool sentinel);

    const RedisOptions& options_;
    const Clock& clock_;
    const int epoll_;
    std::vector<std::unique_ptr<RedisServer>> all_;  // those of the URL come first
    std::size_t begin_with_ = 0;                     // the entry, or the Sentinel to ask
    RedisServer* primary_ = nullptr;                 // that the Sentinels named
};

}  // namespace outbox
