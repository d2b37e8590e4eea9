// A connection to one Redis server, logged in, over TCP or TLS. It never blocks.
//
//   open()         starts to connect and to log in
//   step()         continues
//   output()       commands to send, once the state is `ready`; flush() sends them
//   next_answer()  the answers to them, in order
// failure()      why the connection has ended
#pragma once

#include <string>

#include "net/resp.hpp"
#include "net/stream.hpp"

namespace outbox {

struct RedisLogin {
    std::string user, password;  // empty if there is none; a password without user is possible
    std::size_t database = 0;
};

// Returns true if this code is the first word of the error.
bool has_code(std::string_view error, std::string_view code) noexcept;

class RedisConnection {
  public:
    enum class State { closed, connecting, ready };

    RedisConnection(TransportConfig config, RedisLogin login, RespReader::Limits limits = {});

    int descriptor() const noexcept { return stream_.descriptor(); }
    Micros deadline() const noexcept;
    State state() const noexcept { return state_; }

    // These may throw std::bad_alloc.
    void open(Micros now);
    void step(Micros now);
    void flush() { stream_.flush(); }
    // Returns the next answer, which is valid until the next call, or nullptr.
    RespValue* next_answer();
    std::size_t answer_bytes() const noexcept { return reader_.bytes(); }  // of that answer
    void fail(std::string why, Scope scope = Scope::connection);

    void close() noexcept;

    std::string& output() noexcept { return stream_.output(); }
    std::size_t unsent() const noexcept { return stream_.unsent(); }
    const std::string& failure() const noexcept { return stream_.failure(); }
    Scope scope() const noexcept { return stream_.scope(); }  // of the failure

  private:
    void log_in();
    void take_login_answers();

    const RedisLogin login_;
    const Micros connect_timeout_;
    Stream stream_;
    RespReader reader_;
    State state_ = State::closed;
    std::size_t login_answers_ = 0;  // that have not come
    Micros give_up_at_ = never;
};

}  // namespace outbox
