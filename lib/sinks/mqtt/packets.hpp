// Packets of MQTT 5, as far as a publisher needs them (OASIS standard, MQTT Version 5.0).
//
// Writing appends to a string. Reading takes one packet at a time from the bytes that have arrived.
// A length that the broker sends is compared with `max_packet_in` before anything is stored, and
// the CONNECT packet tells the broker this limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sinks/mqtt/text.hpp"

namespace outbox {

// The upper half of the first byte.
enum class MqttType : std::uint8_t {
    connect = 1,
    connack = 2,
    publish = 3,
    puback = 4,
    pubrec = 5,
    pubrel = 6,
    pubcomp = 7,
    pingreq = 12,
    pingresp = 13,
    disconnect = 14,
};

constexpr std::size_t max_packet_in = 16 * 1024;
// Size of the largest packet that the protocol allows, in bytes.
constexpr std::size_t max_mqtt_packet = 268'435'455 + 5;

// -- writing --------------------------------------------------------------------------------------

// Properties of a message. Each function appends one.
void append_content_type(std::string& properties, std::string_view type);
void append_message_expiry(std::string& properties, std::uint32_t seconds);
void append_user_property(std::string& properties, std::string_view name, std::string_view value);

struct MqttConnect {
    std::string_view client_id, user, password;  // the latter two are not sent if they are empty
    bool clean_start = true;
    std::uint16_t keep_alive = 0;      // seconds
    std::uint32_t session_expiry = 0;  // seconds
};
void append_connect(std::string& out, const MqttConnect& connect);

struct MqttPublish {
    std::string_view topic, properties, payload;
    std::uint16_t id = 0;
    int qos = 1;
    bool retain = false;
    bool again = false;  // it may have been sent before
};
std::size_t size_of_publish(const MqttPublish& publish) noexcept;
// The size must not exceed max_mqtt_packet.
void append_publish(std::string& out, const MqttPublish& publish);
void append_pubrel(std::string& out, std::uint16_t id);
void append_pingreq(std::string& out);
void append_disconnect(std::string& out);

// -- reading --------------------------------------------------------------------------------------

struct MqttPacket {
    MqttType type{};
    std::uint8_t flags = 0;
    std::string_view body;
    std::size_t size = 0;  // including its header
};

// Result of looking for a packet. `packet` and `error` are empty if the packet has not arrived
// completely.
struct MqttPacketFound {
    std::optional<MqttPacket> packet{};
    std::string error{};
};
MqttPacketFound find_packet(std::string_view input);

// The properties that a publisher needs.
struct MqttProperties {
    std::string_view reason, server_reference, assigned_client_id;
    std::optional<std::uint32_t> max_packet_size;
    std::optional<std::uint16_t> receive_maximum, keep_alive;
    std::optional<std::uint8_t> max_qos, retain_available;
};

// The functions below return std::nullopt if the packet is malformed.

struct MqttConnack {
    bool session_present = false;
    std::uint8_t code = 0;
    MqttProperties properties{};
};
std::optional<MqttConnack> read_connack(std::string_view body);
// Returns true if it is the answer of a broker that only speaks MQTT 3.
bool is_connack_of_mqtt3(std::string_view body) noexcept;

// Content of PUBACK, PUBREC or PUBCOMP.
struct MqttAck {
    MqttType type{};
    std::uint16_t id = 0;
    std::uint8_t code = 0;
    std::string_view reason;
};
std::optional<MqttAck> read_ack(const MqttPacket& packet);

struct MqttDisconnect {
    std::uint8_t code = 0;
    MqttProperties properties{};
};
std::optional<MqttDisconnect> read_disconnect(std::string_view body);

}  // namespace outbox
