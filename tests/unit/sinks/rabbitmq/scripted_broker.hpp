// A server of AMQP on loopback under the control of a test. It runs in the thread of the test, which steps
// it between the steps of the sink, or while the thread of a source works.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "net/amqp/frames.hpp"
#include "unit/loopback.hpp"

namespace outbox {

inline std::string be(std::uint64_t value, std::size_t size) {
    std::string bytes;
    for (std::size_t i = size; i-- > 0;)
        bytes += static_cast<char>(value >> (8 * i));
    return bytes;
}
inline std::string long_string(const std::string& text) {
    return be(text.size(), 4) + text;
}
inline std::string short_string(const std::string& text) {
    return be(text.size(), 1) + text;
}
inline std::string raw_frame(int type, int channel, const std::string& payload) {
    return be(static_cast<std::uint64_t>(type), 1) + be(static_cast<std::uint64_t>(channel), 2) +
           long_string(payload) + '\xCE';
}
inline std::string method(int channel, std::uint32_t number, const std::string& arguments = "") {
    return raw_frame(AMQP_FRAME_METHOD, channel, be(number, 4) + arguments);
}

class ScriptedBroker {
  public:
    struct Message {
        int channel = 0;
        std::uint64_t tag = 0;
        std::string exchange{}, routing_key{}, id{}, body{};
        bool mandatory = false;
    };

    ScriptedBroker() { listener_ = listen_on_loopback(port, 8, SOCK_NONBLOCK); }
    ~ScriptedBroker() {
        hang_up();
        close(listener_);
    }

    int port = 0;
    int connections = 0;
    bool answers = true;  // the login
    std::string mechanisms = "PLAIN EXTERNAL";
    std::string server_properties = long_string("");
    std::uint32_t frame_max = 4096;
    std::uint16_t channel_max = 100, heartbeat = 60;
    std::string response{}, mechanism{}, virtual_host{};  // of the client
    std::vector<Message> messages{};
    std::vector<int> opened{};  // channels
    std::vector<int> closed{};  // confirmed by the client
    // Of a consumer: its requests in short, such as "qos 10", "consume q", "ack 3", "ack 3+".
    std::vector<std::string> requests{};
    bool answers_consumer = true;
    // Called with each message.
    std::function<void(const Message&)> on_message = [this](const Message& m) {
        ack(m.channel, m.tag);
    };

    void send(const std::string& bytes) {
        if (peer_ >= 0)
            ::send(peer_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    void ack(int channel, std::uint64_t tag, bool multiple = false) {
        send(method(channel, AMQP_BASIC_ACK_METHOD, be(tag, 8) + be(multiple, 1)));
    }
    void nack(int channel, std::uint64_t tag) {
        send(method(channel, AMQP_BASIC_NACK_METHOD, be(tag, 8) + be(0, 1)));
    }
    void give_back(const Message& m, const std::string& id) {
        send(method(m.channel, AMQP_BASIC_RETURN_METHOD,
                    be(312, 2) + short_string("NO_ROUTE") + short_string(m.exchange) +
                        short_string(m.routing_key)) +
             raw_frame(AMQP_FRAME_HEADER, m.channel,
                       be(AMQP_BASIC_CLASS, 2) + be(0, 2) + be(m.body.size(), 8) +
                           be(AMQP_BASIC_MESSAGE_ID_FLAG, 2) + short_string(id)));
        if (!m.body.empty())
            send(raw_frame(AMQP_FRAME_BODY, m.channel, m.body));
    }
    void close_channel(int channel, int code, const std::string& text) {
        send(method(channel, AMQP_CHANNEL_CLOSE_METHOD,
                    be(static_cast<std::uint64_t>(code), 2) + short_string(text) +
                        be(AMQP_BASIC_PUBLISH_METHOD, 4)));
    }
    void close_connection(int code, const std::string& text) {
        send(method(0, AMQP_CONNECTION_CLOSE_METHOD,
                    be(static_cast<std::uint64_t>(code), 2) + short_string(text) + be(0, 4)));
    }
    // To the consumer of channel 1. `properties` are encoded, with their flags.
    static std::string delivery(std::uint64_t tag, const std::string& body,
                                const std::string& properties = std::string(2, '\0'),
                                const std::string& consumer = "pg_inbox") {
        std::string frames =
            method(1, AMQP_BASIC_DELIVER_METHOD,
                   short_string(consumer) + be(tag, 8) + be(0, 1) + short_string("") +
                       short_string("key")) +
            raw_frame(AMQP_FRAME_HEADER, 1,
                      be(AMQP_BASIC_CLASS, 2) + be(0, 2) + be(body.size(), 8) + properties);
        if (!body.empty())
            frames += raw_frame(AMQP_FRAME_BODY, 1, body);
        return frames;
    }
    static std::string message_id(const std::string& id) {
        return be(AMQP_BASIC_MESSAGE_ID_FLAG, 2) + short_string(id);
    }
    static std::string stream_offset(std::uint64_t offset) {
        return be(AMQP_BASIC_HEADERS_FLAG, 2) +
               long_string(short_string("x-stream-offset") + 'l' + be(offset, 8));
    }
    void hang_up() {
        if (peer_ >= 0)
            close(peer_);
        peer_ = -1;
    }

    void step() {
        const int fresh = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        take_input();  // also what came before the client has left a connection
        if (fresh < 0)
            return;
        hang_up();
        peer_ = fresh;
        const int one = 1;
        setsockopt(peer_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connections++;
        input_.clear();
        greeted_ = false;
        tags_.assign(1000, 0);
        take_input();
    }

  private:
    void take_input() {
        if (peer_ < 0)
            return;
        char buffer[65536];
        for (ssize_t size; (size = recv(peer_, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
            input_.append(buffer, static_cast<std::size_t>(size));
        if (!greeted_ && input_.size() >= 8) {
            input_.erase(0, 8);
            greeted_ = true;
            if (answers)
                send(method(0, AMQP_CONNECTION_START_METHOD,
                            std::string("\0\x09", 2) + server_properties + long_string(mechanisms) +
                                long_string("en_US")));
        }
        Frame frame;
        while (greeted_ && peer_ >= 0 &&
               read_frame(input_, 10'000'000, frame) == Framing::complete) {
            const std::string payload(frame.payload);
            frame.payload = payload;
            input_.erase(0, payload.size() + frame_overhead);
            take(frame);
        }
    }

    void take(const Frame& frame) {
        const int channel = frame.channel;
        switch (AmqpDecoder::number_of(frame)) {
            case AMQP_CONNECTION_START_OK_METHOD: {
                const auto* ok = decoder_.decode<amqp_connection_start_ok_t>(frame);
                mechanism = text_of(ok->mechanism);
                response = text_of(ok->response);
                send(method(0, AMQP_CONNECTION_TUNE_METHOD,
                            be(channel_max, 2) + be(frame_max, 4) + be(heartbeat, 2)));
                break;
            }
            case AMQP_CONNECTION_OPEN_METHOD:
                virtual_host =
                    text_of(decoder_.decode<amqp_connection_open_t>(frame)->virtual_host);
                send(method(0, AMQP_CONNECTION_OPEN_OK_METHOD, short_string("")));
                break;
            case AMQP_CHANNEL_OPEN_METHOD:
                opened.push_back(channel);
                tags_[frame.channel] = 0;
                send(method(channel, AMQP_CHANNEL_OPEN_OK_METHOD, long_string("")));
                break;
            case AMQP_CONFIRM_SELECT_METHOD:
                send(method(channel, AMQP_CONFIRM_SELECT_OK_METHOD));
                break;
            case AMQP_CHANNEL_CLOSE_METHOD:
                send(method(channel, AMQP_CHANNEL_CLOSE_OK_METHOD));
                break;
            case AMQP_CHANNEL_CLOSE_OK_METHOD:
                closed.push_back(channel);
                break;
            case AMQP_BASIC_PUBLISH_METHOD: {
                const auto* publish = decoder_.decode<amqp_basic_publish_t>(frame);
                current_ = {.channel = channel,
                            .tag = ++tags_[frame.channel],
                            .exchange = std::string(text_of(publish->exchange)),
                            .routing_key = std::string(text_of(publish->routing_key)),
                            .mandatory = publish->mandatory != 0};
                break;
            }
            case AMQP_BASIC_QOS_METHOD: {
                const auto* qos = decoder_.decode<amqp_basic_qos_t>(frame);
                requests.push_back("qos " + std::to_string(qos->prefetch_count));
                if (answers_consumer)
                    send(method(channel, AMQP_BASIC_QOS_OK_METHOD));
                break;
            }
            case AMQP_BASIC_CONSUME_METHOD: {
                const auto* consume = decoder_.decode<amqp_basic_consume_t>(frame);
                std::string request = "consume " + std::string(text_of(consume->queue));
                if (consume->arguments.num_entries > 0) {
                    const amqp_field_value_t& value = consume->arguments.entries[0].value;
                    request += ' ' + (value.kind == AMQP_FIELD_KIND_UTF8
                                          ? std::string(text_of(value.value.bytes))
                                          : std::to_string(value.value.i64));
                }
                requests.push_back(request);
                if (answers_consumer)
                    send(method(channel, AMQP_BASIC_CONSUME_OK_METHOD,
                                short_string(std::string(text_of(consume->consumer_tag)))));
                break;
            }
            case AMQP_BASIC_ACK_METHOD: {
                const auto* ack = decoder_.decode<amqp_basic_ack_t>(frame);
                requests.push_back("ack " + std::to_string(ack->delivery_tag) +
                                   (ack->multiple != 0 ? "+" : ""));
                break;
            }
            case AMQP_BASIC_NACK_METHOD:
                requests.push_back("nack");
                break;
            case AMQP_BASIC_CANCEL_METHOD:
                requests.push_back("cancel");
                break;
            case 0:
                if (frame.type == AMQP_FRAME_HEADER) {
                    const auto* properties = decoder_.decode_properties(frame, left_);
                    current_.id = text_of(properties->message_id);
                } else if (frame.type == AMQP_FRAME_BODY) {
                    current_.body += frame.payload;
                    left_ -= frame.payload.size();
                } else {
                    break;
                }
                if (left_ == 0) {
                    messages.push_back(current_);
                    on_message(messages.back());
                }
                break;
            default:
                break;
        }
    }

    int listener_ = -1, peer_ = -1;
    bool greeted_ = false;
    std::string input_;
    std::vector<std::uint64_t> tags_;
    AmqpDecoder decoder_;
    Message current_;
    std::uint64_t left_ = 0;
};

}  // namespace outbox
