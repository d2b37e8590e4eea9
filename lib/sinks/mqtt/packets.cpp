#include "sinks/mqtt/packets.hpp"

namespace outbox {

// -- writing --------------------------------------------------------------------------------------

static void append_u16(std::string& out, std::size_t value) {
    out += static_cast<char>(value >> 8 & 0xff);
    out += static_cast<char>(value & 0xff);
}

static void append_u32(std::string& out, std::uint32_t value) {
    append_u16(out, value >> 16);
    append_u16(out, value & 0xffff);
}

// A variable byte integer: seven bits a byte, the lowest first.
static void append_length(std::string& out, std::size_t value) {
    do {
        const std::size_t rest = value >> 7;
        out += static_cast<char>((value & 0x7f) | (rest > 0 ? 0x80 : 0));
        value = rest;
    } while (value > 0);
}

static std::size_t length_of_length(std::size_t value) noexcept {
    return value < 128 ? 1 : value < 16'384 ? 2 : value < 2'097'152 ? 3 : 4;
}

namespace {

enum Property : char {
    content_type = 0x03,
    message_expiry_interval = 0x02,
    session_expiry_interval = 0x11,
    maximum_packet_size = 0x27,
    user_property = 0x26,
};

}  // namespace

void append_content_type(std::string& properties, std::string_view type) {
    properties += content_type;
    append_mqtt_text(properties, type);
}

void append_message_expiry(std::string& properties, std::uint32_t seconds) {
    properties += message_expiry_interval;
    append_u32(properties, seconds);
}

void append_user_property(std::string& properties, std::string_view name, std::string_view value) {
    properties += user_property;
    append_mqtt_text(properties, name);
    append_mqtt_text(properties, value);
}

static void begin_packet(std::string& out, MqttType type, unsigned flags) {
    out += static_cast<char>(static_cast<unsigned>(type) << 4 | flags);
}

void append_connect(std::string& out, const MqttConnect& connect) {
    constexpr unsigned has_user = 0x80, has_password = 0x40, clean_start = 0x02;
    std::string body;
    append_mqtt_text(body, "MQTT");
    body += '\x05';
    body += static_cast<char>((connect.user.empty() ? 0 : has_user) |
                              (connect.password.empty() ? 0 : has_password) |
                              (connect.clean_start ? clean_start : 0));
    append_u16(body, connect.keep_alive);
    std::string properties;
    properties += maximum_packet_size;
    append_u32(properties, max_packet_in);
    if (connect.session_expiry > 0) {
        properties += session_expiry_interval;
        append_u32(properties, connect.session_expiry);
    }
    append_length(body, properties.size());
    body += properties;
    append_mqtt_text(body, connect.client_id);
    if (!connect.user.empty())
        append_mqtt_text(body, connect.user);
    if (!connect.password.empty()) {  // binary data
        append_u16(body, connect.password.size());
        body += connect.password;
    }
    begin_packet(out, MqttType::connect, 0);
    append_length(out, body.size());
    out += body;
}

static std::size_t body_of_publish(const MqttPublish& publish) noexcept {
    return 2 + publish.topic.size() + 2 + length_of_length(publish.properties.size()) +
           publish.properties.size() + publish.payload.size();
}

std::size_t size_of_publish(const MqttPublish& publish) noexcept {
    const std::size_t body = body_of_publish(publish);
    return 1 + length_of_length(body) + body;
}

void append_publish(std::string& out, const MqttPublish& publish) {
    constexpr unsigned retain = 1, again = 8;
    begin_packet(out, MqttType::publish,
                 static_cast<unsigned>(publish.qos) << 1 | (publish.retain ? retain : 0) |
                     (publish.again ? again : 0));
    append_length(out, body_of_publish(publish));
    append_u16(out, publish.topic.size());
    out += publish.topic;
    append_u16(out, publish.id);
    append_length(out, publish.properties.size());
    out += publish.properties;
    out += publish.payload;
}

void append_pubrel(std::string& out, std::uint16_t id) {
    begin_packet(out, MqttType::pubrel, 2);
    out += '\x02';
    append_u16(out, id);
}

void append_pingreq(std::string& out) {
    begin_packet(out, MqttType::pingreq, 0);
    out += '\0';
}

void append_disconnect(std::string& out) {
    begin_packet(out, MqttType::disconnect, 0);
    out += '\0';
}

// -- reading --------------------------------------------------------------------------------------

namespace {

// Takes parts from the front of a packet. If a part is missing, ok() is false from then on, and all
// further parts are empty.
class Parts {
  public:
    explicit Parts(std::string_view bytes) : left_(bytes) {}

    bool ok() const noexcept { return ok_; }
    std::string_view left() const noexcept { return left_; }

    std::string_view bytes(std::size_t count) noexcept {
        if (count > left_.size()) {
            ok_ = false;
            left_ = {};
            return {};
        }
        const std::string_view taken = left_.substr(0, count);
        left_.remove_prefix(count);
        return taken;
    }
    std::uint32_t number(std::size_t count) noexcept {
        std::uint32_t value = 0;
        for (const char c : bytes(count))
            value = value << 8 | static_cast<unsigned char>(c);
        return value;
    }
    std::uint8_t u8() noexcept { return static_cast<std::uint8_t>(number(1)); }
    std::uint16_t u16() noexcept { return static_cast<std::uint16_t>(number(2)); }
    std::string_view text() noexcept { return bytes(u16()); }
    std::uint32_t length() noexcept {
        std::uint32_t value = 0;
        for (unsigned shift = 0; shift < 28; shift += 7) {
            const std::uint8_t byte = u8();
            value |= static_cast<std::uint32_t>(byte & 0x7f) << shift;
            if ((byte & 0x80) == 0)
                return value;
        }
        ok_ = false;
        return 0;
    }

  private:
    std::string_view left_;
    bool ok_ = true;
};

bool read_property(Parts& parts, MqttProperties& properties) {
    switch (parts.u8()) {
        case 0x12:
            properties.assigned_client_id = parts.text();
            return true;
        case 0x13:
            properties.keep_alive = parts.u16();
            return true;
        case 0x1c:
            properties.server_reference = parts.text();
            return true;
        case 0x1f:
            properties.reason = parts.text();
            return true;
        case 0x21:
            properties.receive_maximum = parts.u16();
            return *properties.receive_maximum > 0;
        case 0x24:
            properties.max_qos = parts.u8();
            return *properties.max_qos <= 1;
        case 0x25:
            properties.retain_available = parts.u8();
            return *properties.retain_available <= 1;
        case 0x27:
            properties.max_packet_size = parts.number(4);
            return *properties.max_packet_size > 0;
        // Other properties that these packets may have.
        case 0x11:  // session expiry
            parts.number(4);
            return true;
        case 0x22:  // topic aliases
            parts.u16();
            return true;
        case 0x28:  // wildcard subscriptions, subscription identifiers, shared subscriptions
        case 0x29:
        case 0x2a:
            parts.u8();
            return true;
        case 0x15:  // authentication; response information
        case 0x16:
        case 0x1a:
            parts.text();
            return true;
        case 0x26:  // user property
            parts.text();
            parts.text();
            return true;
        default:
            return false;
    }
}

bool read_properties(Parts& parts, MqttProperties& properties) {
    Parts own(parts.bytes(parts.length()));
    while (parts.ok() && own.ok() && !own.left().empty())
        if (!read_property(own, properties))
            return false;
    return parts.ok() && own.ok() && parts.left().empty();
}

}  // namespace

MqttPacketFound find_packet(std::string_view input) {
    std::size_t length = 0, at = 1;
    for (;; at++) {
        if (at >= input.size())
            return {};
        const auto byte = static_cast<unsigned char>(input[at]);
        length |= static_cast<std::size_t>(byte & 0x7f) << (7 * (at - 1));
        if ((byte & 0x80) == 0)
            break;
        if (at == 4)
            return {.error = "the broker sent a malformed packet"};
    }
    const std::size_t size = at + 1 + length;
    if (size > max_packet_in)
        return {.error = "the broker sent a packet of " + std::to_string(size) +
                         " bytes, although it was told that the limit is " +
                         std::to_string(max_packet_in)};
    if (size > input.size())
        return {};
    const auto first = static_cast<unsigned char>(input.front());
    return {.packet = MqttPacket{static_cast<MqttType>(first >> 4),
                                 static_cast<std::uint8_t>(first & 0x0f),
                                 input.substr(at + 1, length), size}};
}

bool is_connack_of_mqtt3(std::string_view body) noexcept {
    return body.size() == 2 && static_cast<unsigned char>(body[1]) < 0x80;
}

std::optional<MqttConnack> read_connack(std::string_view body) {
    Parts parts(body);
    const std::uint8_t flags = parts.u8();
    MqttConnack connack{.session_present = (flags & 1) != 0, .code = parts.u8()};
    if (!parts.ok() || flags > 1)
        return std::nullopt;
    if (!parts.left().empty() && !read_properties(parts, connack.properties))
        return std::nullopt;
    return connack;
}

std::optional<MqttAck> read_ack(const MqttPacket& packet) {
    Parts parts(packet.body);
    MqttAck ack{.type = packet.type, .id = parts.u16(), .code = 0, .reason = {}};
    MqttProperties properties;
    if (parts.ok() && !parts.left().empty()) {
        ack.code = parts.u8();
        if (!parts.left().empty() && !read_properties(parts, properties))
            return std::nullopt;
    }
    ack.reason = properties.reason;
    return parts.ok() ? std::optional(ack) : std::nullopt;
}

std::optional<MqttDisconnect> read_disconnect(std::string_view body) {
    MqttDisconnect disconnect;
    if (body.empty())
        return disconnect;
    Parts parts(body);
    disconnect.code = parts.u8();
    if (!parts.left().empty() && !read_properties(parts, disconnect.properties))
        return std::nullopt;
    return disconnect;
}

}  // namespace outbox
