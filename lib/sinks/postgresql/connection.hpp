// A connection to the database of a destination. Resolves the host, connects and logs in without
// blocking.
//
// The peer is not trusted. All received bytes are counted, and no more are taken than an answer may
// have; notices and notifications are dropped.
// Nothing is taken from the environment of the server process. A powerful role
// (core/powerful_role.hpp) is never used.
#pragma once

#include <libpq-fe.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/clock.hpp"
#include "core/libpq_limits.hpp"
#include "sinks/postgresql/login_step.hpp"
#include "sinks/postgresql/options.hpp"
#include "sinks/postgresql/resolver.hpp"

namespace outbox {

// May throw std::bad_alloc. After a failure, failure() has the reason until close().
class PostgresqlConnection {
  public:
    // The current stage. After a failure, the stage that failed.
    enum class Stage { closed, address, connection, tls, login, open };

    // `options` must outlive the connection.
    PostgresqlConnection(const PostgresqlOptions& options, const Clock& clock);
    ~PostgresqlConnection();
    PostgresqlConnection(const PostgresqlConnection&) = delete;
    PostgresqlConnection& operator=(const PostgresqlConnection&) = delete;

    int descriptor() const noexcept { return epoll_; }
    // Time by which the connection must be open.
    Micros deadline() const noexcept { return deadline_; }
    Stage stage() const noexcept { return stage_; }
    const std::string& failure() const noexcept { return failure_; }
    void fail(std::string why) { failure_ = std::move(why); }

    void start();
    // Proceeds towards `open` as far as it can without blocking.
    void step(Micros now);
    void close() noexcept;

    // Returns nullptr while libpq works in a thread.
    PGconn* get() const noexcept { return login_step_ == nullptr ? connection_ : nullptr; }

    // The following functions are for an open connection.

    // Reads the bytes that have arrived. Returns false if there are none, or if the connection is
    // lost.
    bool consume();
    void flush();
    // An expected answer is complete. Its bytes do not count against the limit of the next one.
    void answered() noexcept { counted_to_ = socket_.received(); }
    // libpq keeps some of the data it received until the connection is closed. True when it is time
    // for a new connection.
    bool is_worn_out() const noexcept { return socket_.received() > max_received; }
    // A call of libpq failed. Takes over its error.
    void take_error();

  private:
    // An answer is a few hundred bytes, or an error that may quote a payload. libpq needs up to
    // eight times that memory, and its search for a parameter is linear.
    static constexpr std::uint64_t max_answer = 1280 * 1024;
    static constexpr std::uint64_t max_received = 512 * 1024;

    void resolve();
    std::string allowed_among(std::string_view addresses);
    void start_connection(const std::string& addresses);
    std::optional<std::string> unusable_file() const;
    void poll();
    void take_login_step();
    void logged_in();
    void ask_for_power();
    void take_power();
    void start_login_step();
    void read();
    bool insert_socket();
    bool pull();
    void watch(int descriptor, std::uint32_t events);
    void rewatch(std::uint32_t events);
    void unwatch() noexcept;
    bool ready_now() const;

    const PostgresqlOptions& options_;
    const Clock& clock_;
    const int epoll_;
    int watched_ = -1;
    std::uint32_t watched_events_ = 0;

    Stage stage_ = Stage::closed;
    bool asked_ = false;  // the question of ask_for_power() was sent
    MeteredSocket socket_;
    std::uint64_t counted_to_ = 0;  // bytes received at the end of the last answer
    std::unique_ptr<Resolver> resolver_;
    PGconn* connection_ = nullptr;
    std::unique_ptr<LoginStep> login_step_;
    Micros deadline_ = never;
    std::string failure_;
};

// Call this before the first connection, and before there are threads. Otherwise libpq would take
// hosts, services, options and files from the environment of the server process, where they are
// meant for something else.
void prepare_process_for_libpq();

// Turns a message of libpq into one line.
std::string one_line(std::string_view message);

}  // namespace outbox
