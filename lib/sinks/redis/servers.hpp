// The servers that a sink talks to: those of the URL, those that a cluster redirects it to, and the
// primary that the Sentinels name. Each has one connection, on which commands are pipelined.
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

// Commands with one purpose that were sent together. Their answers come in the order of the
// questions.
struct Question {
    enum class Kind : std::uint8_t {
        primary,      // asks a Sentinel which server it is
        state,        // of a stream
        entries,      // the last ones of a stream
        transaction,  // adds events
        replicas,     // asks how many have what was written before
    };
    Kind kind;
    StreamLane* lane = nullptr;  // with `state` and `entries`
    Job* job = nullptr;          // with the kinds below them; nullptr if the job has ended
    std::size_t answers = 0;
    std::size_t taken = 0;    // answers that have come
    std::size_t entries = 0;  // how many were asked for
};

struct RedisServer {
    RedisServer(TransportConfig config, RedisLogin login, std::string name)
        : connection(std::move(config), std::move(login)), name(std::move(name)) {}

    RedisConnection connection;
    const std::string name;  // "host:port"
    std::deque<Question> questions{};
    bool is_sentinel = false;
    bool to_close = false;  // close it when all questions are answered
};

class RedisServers {
  public:
    RedisServers(const RedisOptions& options, const Clock& clock);
    ~RedisServers();
    RedisServers(const RedisServers&) = delete;
    RedisServers& operator=(const RedisServers&) = delete;

    // Becomes readable when a connection has something to do.
    int descriptor() const noexcept { return epoll_; }
    Micros deadline() const noexcept;

    // Returns the server for streams without a redirect: the primary, or a Sentinel as long as the
    // primary is not known.
    RedisServer& entry();
    // Returns the server that a redirect names, or nullptr if the name is not valid or there are
    // too many servers.
    RedisServer* named(const RedisServer& by, const std::string& host, const std::string& port);
    // After this, entry() returns another server, if there is one.
    void leave(const RedisServer& server) noexcept;
    void set_primary(RedisServer* server) noexcept { primary_ = server; }

    template <class Each>
    void for_each(Each each) {
        for (std::size_t i = 0; i < all_.size(); i++)  // the call may add servers
            each(*all_[i]);
    }

    // Returns true if it is one of several servers that share the streams.
    bool is_entry(const RedisServer& server) const noexcept;

  private:
    RedisServer* add(const std::string& host, const std::string& port, bool sentinel);

    const RedisOptions& options_;
    const Clock& clock_;
    const int epoll_;
    std::vector<std::unique_ptr<RedisServer>> all_;  // those of the URL come first
    std::size_t begin_with_ = 0;      // index of the entry, or of the Sentinel to ask
    RedisServer* primary_ = nullptr;  // named by a Sentinel
};

}  // namespace outbox
