// A connection to a NATS server: connects, begins TLS when the server has introduced itself, logs in, and
// then passes messages.
//
//   open()      tries the hosts in turn, each once, from the one after the last
//   step()      continues; hands messages to the listener
//   output()    commands for the server, once the state is `ready`; flush() sends them
// failure()   why the connection has ended; open() starts again
//
// It connects to the hosts of the configuration and to no others: servers that the cluster names are
// ignored, because outbox.allowed_hosts decides where to connect (docs/decisions/022-own-nats-protocol.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/late_tls.hpp"
#include "net/nats/nats_login.hpp"
#include "net/nats/nats_parser.hpp"
#include "net/stream.hpp"

namespace outbox {

struct NatsConfig {
    std::vector<std::pair<std::string, std::string>> hosts;  // and ports; at least one
    bool tls = false;
    bool tls_first = false;  // TLS begins at once, as with handshake_first of the server
    std::string client_name;
    NatsLogin login;
    TransportOptions transport;
};

// The INFO of the server.
struct NatsServer {
    std::string name, version;
    std::size_t max_payload = 0;
    std::string nonce;
    bool has_headers = false;
    bool offers_tls = false, requires_tls = false;
};

class NatsListener {
  public:
    virtual ~NatsListener() = default;
    // The input is valid only during the call. May throw std::bad_alloc.
    virtual void on_message(const NatsInput& message) = 0;
    // An error after which the connection goes on, such as a missing permission.
    virtual void on_error(std::string_view text) = 0;
};

class NatsConnection {
  public:
    enum class State { closed, connecting, ready };

    NatsConnection(NatsConfig config, const Clock& clock, NatsLimits limits = {});
    ~NatsConnection();
    NatsConnection(const NatsConnection&) = delete;
    NatsConnection& operator=(const NatsConnection&) = delete;

    int descriptor() const noexcept { return epoll_; }
    Micros deadline() const noexcept;
    State state() const noexcept { return state_; }

    // These may throw std::bad_alloc.

    // `greeting`: commands that are sent with the login, such as subscriptions. The connection is ready
    // when the server has accepted them.
    void open(std::string greeting);
    void step(Micros now, NatsListener& listener);
    void flush();
    void fail(std::string why, Scope scope = Scope::connection);

    void close() noexcept;

    std::string& output() noexcept;
    std::size_t unsent() const noexcept;
    Micros received_at() const noexcept { return received_at_; }  // the last byte of the server

    const NatsServer& server() const noexcept { return server_; }
    // The host that is or was connected to.
    const std::string& host() const noexcept { return config_.hosts[current_].first; }
    const std::string& port() const noexcept { return config_.hosts[current_].second; }
    const std::optional<Address>& address() const noexcept;
    bool had_connection() const noexcept { return had_connection_; }  // of TCP, since open()
    bool had_tls() const noexcept { return had_tls_; }
    bool had_server() const noexcept { return !server_.version.empty(); }

    const std::string& failure() const noexcept { return failure_; }
    Scope scope() const noexcept { return scope_; }

  private:
    enum class Stage { info, tls, login, ready };

    void try_host();
    void read(NatsListener& listener);
    bool step_tls();
    std::string_view input() const noexcept;
    void consume(std::size_t bytes) noexcept;
    void take(const NatsInput& input, NatsListener& listener);
    void take_info(std::string_view text);
    void take_error(std::string_view text, NatsListener& listener);
    void begin_tls();
    void log_in();
    void answer_ping();
    std::string late() const;

    const NatsConfig config_;
    const Clock& clock_;
    const NatsLimits limits_;
    const int epoll_;
    State state_ = State::closed;
    Stage stage_ = Stage::info;
    std::size_t current_ = 0;     // of the hosts
    std::size_t hosts_left_ = 0;  // that open() has not tried
    std::string greeting_;
    std::unique_ptr<Stream> stream_;
    std::optional<TransportConfig> tls_config_;
    std::unique_ptr<LateTls> tls_;  // refers to it
    Micros login_due_ = never;
    Micros received_at_ = 0;
    bool has_unread_ = false;  // input that no step has looked at
    bool pong_waits_ = false;  // unsent
    bool had_connection_ = false, had_tls_ = false;
    NatsServer server_;
    std::string failure_;
    Scope scope_ = Scope::connection;
};

// Returns the command that logs in. May throw std::bad_alloc.
std::string nats_connect(const NatsConfig& config, const NatsServer& server);

}  // namespace outbox
