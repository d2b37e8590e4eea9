// A connection to the database of a destination: finds the host, connects and logs in, without
// blocking.
//
// The peer is not trusted. Whatever it sends is counted; notices and notifications are dropped.
// Nothing is taken from the environment of the server process. A role that is, or may become, a
// superuser is used only where nobody else's code could run.
#pragma once

#include <libpq-fe.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/clock.hpp"
#include "sinks/postgresql/login_step.hpp"
#include "sinks/postgresql/options.hpp"
#include "sinks/postgresql/resolver.hpp"

namespace outbox {

// May throw std::bad_alloc. What goes wrong is left in failure(), until close().
class PostgresqlConnection {
  public:
    // What it is at; after a failure, what it failed at.
    enum class Stage { closed, address, connection, tls, login, open };

    // `options` must outlive it.
    PostgresqlConnection(const PostgresqlOptions& options, const Clock& clock);
    ~PostgresqlConnection();
    PostgresqlConnection(const PostgresqlConnection&) = delete;
    PostgresqlConnection& operator=(const PostgresqlConnection&) = delete;

    int descriptor() const noexcept { return epoll_; }
    // When it must be open.
    Micros deadline() const noexcept { return deadline_; }
    Stage stage() const noexcept { return stage_; }
    const std::string& failure() const noexcept { return failure_; }
    void fail(std::string why) { failure_ = std::move(why); }

    void start();
    // Moves on towards `open` as far as it goes.
    void step(Micros now);
    void close() noexcept;

    // nullptr while libpq is at work in a thread.
    PGconn* get() const noexcept { return login_step_ == nullptr ? connection_ : nullptr; }

    // The rest is for one that is open.

    // Reads what has come. False: nothing has, or the connection is lost.
    bool consume();
    void flush();
    // An answer that was waited for is complete: its bytes no longer count against the limit of the
    // next one.
    void answered() noexcept { counted_to_ = received_; }
    // libpq remembers some of what it was sent for as long as the connection is open. It is time
    // for another one.
    bool is_worn_out() const noexcept { return received_ > max_received; }
    // A call of libpq's did not work, which says why.
    void take_error();

  private:
    // An answer is a few hundred bytes, or an error, which may quote a payload. libpq needs up to
    // eight times as much memory for what it keeps, and looks parameters up one after the other.
    static constexpr std::uint64_t max_answer = 1280 * 1024;
    static constexpr std::uint64_t max_received = 512 * 1024;

    void resolve();
    std::string allowed_among(std::string_view addresses);
    void start_connection(const std::string& addresses);
    std::optional<std::string> unusable_file() const;
    void poll();
    void take_login_step();
    void logged_in();
    void ask_for_danger();
    void take_danger();
    void read();
    void count_bytes(bool has_read = false);
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
    bool asked_ = false;  // whether it is dangerous to go on
    std::uint64_t received_ = 0;
    std::uint64_t counted_to_ = 0;
    std::unique_ptr<Resolver> resolver_;
    PGconn* connection_ = nullptr;
    std::unique_ptr<LoginStep> login_step_;
    Micros deadline_ = never;
    std::string failure_;
};

// Call it before the first connection, and before there are threads. libpq would take hosts,
// services, options and files from the environment of the server process, whose owner meant
// something else.
void prepare_process_for_libpq();

// A message of libpq's.
std::string one_line(std::string_view message);

}  // namespace outbox
