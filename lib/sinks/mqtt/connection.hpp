// A connection to a broker: TCP or TLS, CONNECT, keep alive, and its end with the reason for it.
//
//   open()    starts to connect, also after a failure
//   step()    continues; then take() returns the answers that have arrived, one by one
//   ready     the broker has accepted the client; limits() are what it allows
//   failed    the connection is over, and all answers were taken; failure() says why, and what it
//             affects
//
// One thread drives everything, and nothing blocks (net/stream.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "net/stream.hpp"
#include "sinks/mqtt/options.hpp"
#include "sinks/mqtt/packets.hpp"
#include "sinks/mqtt/reasons.hpp"

namespace outbox {

// Limits that the broker announces in CONNACK.
struct MqttLimits {
    std::size_t receive_maximum = 65'535;
    std::size_t max_packet_size = max_mqtt_packet;
    int max_qos = 2;
    bool retain = true;
};

struct MqttFailure {
    std::string why{};
    MqttVerdict verdict{};
    std::uint8_t code = 0;   // reason code, if the broker gave one
    bool connected = false;  // it was ready, so messages may have arrived
};

class MqttConnection {
  public:
    enum class State { closed, connecting, ready, failed };

    MqttConnection(const MqttOptions& options, const Clock& clock);

    int descriptor() const noexcept { return stream_.descriptor(); }
    Micros deadline() const noexcept;
    State state() const noexcept { return state_; }

    // The functions below may throw std::bad_alloc.

    // With `resume` it asks for the session that the broker has kept; see session_present().
    void open(bool resume = false);
    void step(Micros now);
    // Returns PUBACK, PUBREC and PUBCOMP one by one, and std::nullopt if there are no more or the
    // connection has failed.
    std::optional<MqttAck> take(Micros now);
    void flush();
    // Ends the connection because of what the broker has sent, or has not sent.
    void fail(std::string why, MqttVerdict verdict = {Fate::failed, Scope::connection});
    // Sends DISCONNECT if it can.
    void close() noexcept;

    std::string& output() noexcept { return stream_.output(); }
    std::size_t unsent() const noexcept { return stream_.unsent(); }

    // Returns true if the broker has accepted the client, even if it does not allow what the
    // options need.
    bool is_accepted() const noexcept { return accepted_; }
    const MqttLimits& limits() const noexcept { return limits_; }
    bool session_present() const noexcept { return session_present_; }
    Micros ready_since() const noexcept { return ready_since_; }
    const MqttFailure& failure() const noexcept { return failure_; }
    const Stream& stream() const noexcept { return stream_; }

  private:
    void greet();
    void take_greeting(const MqttPacket& packet, Micros now);
    void take_goodbye(const MqttPacket& packet);
    void accept(const MqttConnack& connack);
    void lost();
    void keep_alive(Micros now);

    const MqttOptions& options_;
    const Clock& clock_;
    Stream stream_;
    State state_ = State::closed;
    bool resume_ = false;
    bool greeted_ = false;  // CONNECT was sent
    bool accepted_ = false;
    bool session_present_ = false;
    MqttLimits limits_;
    MqttFailure failure_;
    Micros give_up_at_ = never;  // while it connects
    Micros interval_ = 0;        // of keep alive
    Micros ready_since_ = 0;
    Micros sent_at_ = 0;
    Micros pong_until_ = never;  // set while a PINGREQ has no answer
};

}  // namespace outbox
