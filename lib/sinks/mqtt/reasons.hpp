// What reason codes of MQTT 5 mean for an event, its lane, the connection or the destination.
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

// The parts of an answer that decide about an event.
struct MqttVerdict {
    Fate fate = Fate::confirmed;
    Scope scope = Scope::destination;
    bool permanent = false;
};

// PUBACK, PUBREC or PUBCOMP. `own_topic`: events of the same lane may have another topic.
MqttVerdict verdict_on_publish(std::uint8_t code, bool needs_subscribers, bool own_topic) noexcept;
// The broker refuses a connection (CONNACK).
MqttVerdict verdict_on_connect(std::uint8_t code) noexcept;
// The broker ends a connection (DISCONNECT), for events that it has not answered. Of an event it
// does not say which it was.
MqttVerdict verdict_on_disconnect(std::uint8_t code) noexcept;

// Returns "0x87 (not authorized)", with what the broker said of it.
std::string describe_reason(std::uint8_t code, std::string_view said);

}  // namespace outbox
