// Judges reason codes of MQTT 5: what they mean for an event, its lane, the connection or the
// destination.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/sink.hpp"

namespace outbox {

namespace mqtt_reason {
constexpr std::uint8_t success = 0x00;
constexpr std::uint8_t no_matching_subscribers = 0x10;
constexpr std::uint8_t first_failure = 0x80;
constexpr std::uint8_t unsupported_version = 0x84;
constexpr std::uint8_t bad_client_id = 0x85;
constexpr std::uint8_t session_taken_over = 0x8e;
constexpr std::uint8_t packet_id_not_found = 0x92;
}  // namespace mqtt_reason

// Outcome of an event, according to an answer.
struct MqttVerdict {
    Fate fate = Fate::confirmed;
    Scope scope = Scope::destination;
    bool permanent = false;
};

// Judges PUBACK, PUBREC or PUBCOMP. `own_topic` is true if events of the same lane may have other
// topics.
MqttVerdict verdict_on_publish(std::uint8_t code, bool needs_subscribers, bool own_topic) noexcept;
// Judges CONNACK with which a broker refuses a connection.
MqttVerdict verdict_on_connect(std::uint8_t code) noexcept;
// Judges DISCONNECT with which a broker ends a connection. It concerns the events without an
// answer, but does not say which of them is the cause.
MqttVerdict verdict_on_disconnect(std::uint8_t code) noexcept;

// Returns "0x87 (not authorized)", with the reason that the broker gave.
std::string describe_reason(std::uint8_t code, std::string_view said);

}  // namespace outbox
