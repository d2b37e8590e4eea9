// A connection to RabbitMQ: it logs in, opens the virtual host, keeps heartbeats going, and passes the
// frames of channels. It never blocks.
//
//   open()      starts to connect
//   step()      continues
//   next()      the next frame of a channel; the owner takes all of them after each step
//   output()    frames to send: the owner appends whole ones, and flush() sends them
// failure()   why the connection has ended. Frames that came before have been handed out
//
// The owner opens and closes channels. The connection answers what concerns all of them: that the server
// blocks it, asks for a sign of life, or closes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/sink.hpp"
#include "net/amqp/frames.hpp"
#include "net/stream.hpp"

namespace outbox {

struct AmqpConfig {
    TransportOptions transport;
    std::string host, port;
    bool tls = false;
    std::string virtual_host;
    std::string user, password;  // without a user, the client's certificate names it
    std::string name;            // of the connection, shown by the server
};

class AmqpConnection {
  public:
    enum class State { closed, connecting, ready };

    AmqpConnection(const AmqpConfig& config, const Clock& clock);

    int descriptor() const noexcept { return stream_.descriptor(); }
    // Returns when step() has something to do even if the descriptor is not readable.
    Micros deadline() const noexcept;
    State state() const noexcept { return state_; }

    // These may throw std::bad_alloc.
    void open();
    void step(Micros now);
    // Returns the next frame of a channel, which is valid until the next call of any function.
    std::optional<Frame> next();
    void flush();
    // Sends an orderly end of the connection, and does not wait for the answer.
    void close();
    // Closes the connection because of what the peer has sent, or has not sent.
    void fail(std::string why, Scope scope = Scope::connection);

    std::string& output() noexcept { return stream_.output(); }
    std::size_t unsent() const noexcept { return stream_.unsent(); }
    AmqpDecoder& decoder() noexcept { return decoder_; }

    // Agreed with the server; valid when the connection is ready.
    std::size_t max_frame() const noexcept { return max_frame_; }
    std::uint16_t max_channels() const noexcept { return max_channels_; }
    const std::string& server() const noexcept { return server_; }  // its product and version

    // True while the server takes no messages; blocked_by() is its reason.
    bool is_blocked() const noexcept { return blocked_; }
    const std::string& blocked_by() const noexcept { return blocked_by_; }
    Micros unblocked_at() const noexcept { return unblocked_at_; }  // last; 0 if it was not blocked

    // Returns when the last bytes arrived.
    Micros heard_at() const noexcept { return heard_at_; }

    const std::string& failure() const noexcept { return failure_; }
    Scope scope() const noexcept { return scope_; }
    void forget_failure() noexcept { failure_.clear(); }
    // The server ended it in an orderly way, because it stops or an operator wants it.
    bool was_dismissed() const noexcept { return dismissed_; }

  private:
    void handle(const Frame& frame);
    void started(const Frame& frame);
    void tuned(const Frame& frame);
    void closed(const Frame& frame);
    void malformed(std::string_view what);

    const AmqpConfig config_;
    const Clock& clock_;
    Stream stream_;
    AmqpDecoder decoder_;
    State state_ = State::closed;
    enum class Step { start, tune, open, done } login_ = Step::start;

    std::size_t taken_ = 0;  // bytes of the frame that next() returned
    std::size_t max_frame_ = 0;
    std::uint16_t max_channels_ = 0;
    Micros heartbeat_ = 0;  // 0 if none was agreed
    Micros opened_at_ = 0, heard_at_ = 0, said_at_ = 0, unblocked_at_ = 0;
    bool blocked_ = false;
    std::string blocked_by_, server_;

    std::string failure_;
    Scope scope_ = Scope::connection;
    bool dismissed_ = false;
};

// Returns the default port of RabbitMQ.
constexpr const char* amqp_port(bool tls) noexcept {
    return tls ? "5671" : "5672";
}

// Writes "404 NOT_FOUND - no exchange 'x'" of what a server said when it closed something.
std::string explain_close(std::uint16_t code, amqp_bytes_t text);

}  // namespace outbox
