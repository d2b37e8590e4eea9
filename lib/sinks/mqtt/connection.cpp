#include "sinks/mqtt/connection.hpp"

#include <algorithm>

#include "core/late.hpp"

namespace outbox {

static constexpr std::size_t max_input = 256 * 1024;

MqttConnection::MqttConnection(const MqttOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      stream_(
          stream_config(options.transport, clock, options.host, options.port, options.tls, "mqtt"),
          max_input) {}

Micros MqttConnection::deadline() const noexcept {
    const bool runs = state_ == State::connecting || state_ == State::ready;
    if (runs && stream_.state() == Stream::State::closed)
        return 0;
    const Micros own = state_ == State::connecting ? give_up_at_
                       : state_ == State::ready    ? std::min(pong_until_, sent_at_ + interval_)
                                                   : never;
    return std::min(own, stream_.deadline());
}

void MqttConnection::open(bool resume) {
    stream_.open();
    state_ = State::connecting;
    resume_ = resume;
    greeted_ = accepted_ = session_present_ = false;
    limits_ = {};
    failure_ = {};
    give_up_at_ = clock_.now() + options_.transport.connect_timeout;
    pong_until_ = never;
}

void MqttConnection::step(Micros now) {
    if (state_ == State::closed || state_ == State::failed)
        return;
    stream_.step(now);
    if (state_ == State::connecting && stream_.state() == Stream::State::open && !greeted_)
        greet();
    if (state_ == State::connecting && now >= give_up_at_)
        fail(greeted_ ? "no answer to CONNECT within " +
                            duration_text(options_.transport.connect_timeout) + " (connect_timeout)"
                      : no_connection_within(options_.transport.connect_timeout),
             {Fate::unavailable, Scope::connection});
    if (state_ == State::ready)
        keep_alive(now);
}

void MqttConnection::greet() {
    greeted_ = true;
    // The broker must keep the session of QoS 2 as long as the sink tries to resume it.
    const auto wait = static_cast<std::uint32_t>(options_.transport.connect_timeout / seconds(1));
    append_connect(stream_.output(), {.client_id = options_.client_id,
                                      .user = options_.user,
                                      .password = options_.password,
                                      .clean_start = !resume_,
                                      .keep_alive = options_.keep_alive,
                                      .session_expiry = options_.qos == 2 ? wait + 1 : 0});
    stream_.flush();
}

// Returns true if an answer to CONNECT may begin with this byte. In another protocol, the next
// bytes would be taken for a length.
static bool may_greet(char first) noexcept {
    const auto type = static_cast<MqttType>(static_cast<unsigned char>(first) >> 4);
    return type == MqttType::connack || type == MqttType::disconnect;
}

std::optional<MqttAck> MqttConnection::take(Micros now) {
    while (state_ == State::connecting || state_ == State::ready) {
        if (state_ == State::connecting && !stream_.input().empty() &&
            !may_greet(stream_.input().front())) {
            fail("the peer does not speak MQTT: it sent something else than CONNACK",
                 {Fate::unavailable, Scope::destination});
            return std::nullopt;
        }
        const MqttPacketFound found = find_packet(stream_.input());
        if (!found.error.empty()) {
            fail(found.error);
            return std::nullopt;
        }
        if (!found.packet) {
            if (stream_.state() == Stream::State::closed)
                lost();
            return std::nullopt;
        }
        const MqttPacket& packet = *found.packet;
        stream_.consume(packet.size);  // the bytes stay in place until the next step()
        if (packet.type == MqttType::disconnect) {
            take_goodbye(packet);
        } else if (state_ == State::connecting) {
            take_greeting(packet, now);
        } else if (packet.type == MqttType::puback || packet.type == MqttType::pubrec ||
                   packet.type == MqttType::pubcomp) {
            if (const std::optional<MqttAck> ack = read_ack(packet))
                return ack;
            fail("the broker sent a malformed answer");
        } else if (packet.type == MqttType::pingresp && pong_until_ != never) {
            pong_until_ = never;
        } else {
            fail("the broker sent a packet of type " +
                 std::to_string(static_cast<int>(packet.type)) + " that nobody asked for");
        }
    }
    return std::nullopt;
}

void MqttConnection::take_greeting(const MqttPacket& packet, Micros now) {
    constexpr MqttVerdict for_all{Fate::unavailable, Scope::destination};
    if (is_connack_of_mqtt3(packet.body)) {
        fail("the broker speaks MQTT 3 only; pg_outbox needs a broker of MQTT 5", for_all);
        return;
    }
    const std::optional<MqttConnack> connack = read_connack(packet.body);
    if (!connack || (connack->session_present && !resume_)) {
        fail("the broker sent a malformed CONNACK", for_all);
        return;
    }
    if (connack->code != mqtt_reason::success) {
        std::string why = "the broker refuses the connection: " +
                          describe_reason(connack->code, connack->properties.reason);
        if (connack->code == mqtt_reason::bad_client_id)
            why += "; set the option client_id";
        if (!connack->properties.server_reference.empty())
            why.append("; it names the server ").append(connack->properties.server_reference);
        fail(std::move(why), verdict_on_connect(connack->code));
        failure_.code = connack->code;
        return;
    }
    accept(*connack);
    ready_since_ = sent_at_ = now;
}

void MqttConnection::accept(const MqttConnack& connack) {
    accepted_ = true;
    const MqttProperties& allowed = connack.properties;
    limits_ = {.receive_maximum = allowed.receive_maximum.value_or(65'535),
               .max_packet_size = std::min<std::size_t>(
                   allowed.max_packet_size.value_or(UINT32_MAX), max_mqtt_packet),
               .max_qos = allowed.max_qos.value_or(2),
               .retain = allowed.retain_available.value_or(1) == 1};
    session_present_ = connack.session_present;
    const std::uint16_t wanted = allowed.keep_alive.value_or(options_.keep_alive);
    // Sends earlier than necessary, because some brokers do not wait longer than the time itself.
    interval_ = wanted > 0 ? seconds(wanted) * 3 / 4 : never / 2;
    if (limits_.max_qos < options_.qos)
        fail("the broker takes QoS " + std::to_string(limits_.max_qos) + " at most (qos)",
             {Fate::unavailable, Scope::destination});
    else if (!limits_.retain && options_.retain)
        fail("the broker does not keep messages (retain)", {Fate::unavailable, Scope::destination});
    else
        state_ = State::ready;
}

void MqttConnection::take_goodbye(const MqttPacket& packet) {
    const std::optional<MqttDisconnect> goodbye = read_disconnect(packet.body);
    if (!goodbye) {
        fail("the broker sent a malformed DISCONNECT");
        return;
    }
    std::string why = goodbye->code == mqtt_reason::session_taken_over
                          ? "another client of the broker has the client id \"" +
                                options_.client_id + "\" as well (client_id): "
                          : "the broker ended the connection: ";
    why += describe_reason(goodbye->code, goodbye->properties.reason);
    if (!goodbye->properties.server_reference.empty())
        why.append("; it names the server ").append(goodbye->properties.server_reference);
    fail(std::move(why), verdict_on_disconnect(goodbye->code));
    failure_.code = goodbye->code;
}

void MqttConnection::lost() {
    if (state_ == State::ready)
        fail(stream_.failure());
    else if (greeted_)
        fail("the broker closed the connection instead of answering CONNECT (" + stream_.failure() +
                 ")",
             {Fate::unavailable, Scope::connection});
    else
        fail(stream_.failure(), {Fate::unavailable, stream_.scope()});
}

void MqttConnection::fail(std::string why, MqttVerdict verdict) {
    failure_ = {std::move(why), verdict, 0, state_ == State::ready};
    state_ = State::failed;
    stream_.close();
}

void MqttConnection::keep_alive(Micros now) {
    if (now >= pong_until_) {
        fail("the broker does not answer: no PINGRESP within " +
             duration_text(options_.transport.request_timeout) + " (request_timeout)");
        return;
    }
    if (now < sent_at_ + interval_)
        return;
    append_pingreq(stream_.output());
    if (pong_until_ == never)
        pong_until_ = now + options_.transport.request_timeout;
    flush();
}

void MqttConnection::flush() {
    sent_at_ = clock_.now();
    stream_.flush();
}

void MqttConnection::close() noexcept {
    try {
        if (state_ == State::ready) {
            append_disconnect(stream_.output());
            stream_.flush();
        }
    } catch (const std::bad_alloc&) {
        // Closes without DISCONNECT.
    }
    stream_.close();
    state_ = State::closed;
}

}  // namespace outbox
