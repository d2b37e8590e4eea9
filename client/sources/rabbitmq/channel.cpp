#include "rabbitmq/channel.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/text.hpp"

namespace inbox::rabbitmq {

using outbox::amqp_bytes;
using outbox::AmqpConnection;
using outbox::AmqpDecoder;
using outbox::append_channel_close;
using outbox::append_channel_close_ok;
using outbox::append_channel_open;
using outbox::append_method;
using outbox::Frame;
using outbox::text_of;

static constexpr std::uint16_t number = 1;
static constexpr const char* consumer_tag = "pg_inbox";

static amqp_table_entry_t begin_argument(const Begin& begin) {
    amqp_table_entry_t entry{};
    entry.key = amqp_bytes("x-stream-offset");
    if (begin.offset) {
        entry.value.kind = AMQP_FIELD_KIND_I64;
        entry.value.value.i64 = *begin.offset;
    } else if (begin.time) {
        const auto since = std::chrono::floor<std::chrono::seconds>(begin.time->time_since_epoch());
        entry.value.kind = AMQP_FIELD_KIND_TIMESTAMP;
        entry.value.value.u64 =
            static_cast<std::uint64_t>(std::max<std::int64_t>(since.count(), 0));
    } else {
        entry.value.kind = AMQP_FIELD_KIND_UTF8;
        entry.value.value.bytes = amqp_bytes(begin.at_end    ? "next"
                                             : begin.at_last ? "last"
                                                             : "first");
    }
    return entry;
}

// -------------------------------------------------------------------------------------------------
// Requests
// -------------------------------------------------------------------------------------------------

void Channel::open(AmqpConnection& connection, const std::optional<Begin>& begin) {
    forget();
    state_ = State::opening;
    std::string& out = connection.output();
    append_channel_open(out, number);
    amqp_basic_qos_t qos{.prefetch_size = 0, .prefetch_count = prefetch_, .global = 0};
    append_method(out, number, AMQP_BASIC_QOS_METHOD, &qos);
    std::array<amqp_table_entry_t, 1> arguments{};
    amqp_basic_consume_t consume{};
    consume.queue = amqp_bytes(queue_);
    consume.consumer_tag = amqp_bytes(consumer_tag);
    if (begin) {
        arguments[0] = begin_argument(*begin);
        consume.arguments = {static_cast<int>(arguments.size()), arguments.data()};
    }
    append_method(out, number, AMQP_BASIC_CONSUME_METHOD, &consume);
    connection.flush();
}

void Channel::ack(AmqpConnection& connection, Claims::Ack ack) {
    amqp_basic_ack_t method{.delivery_tag = ack.tag, .multiple = ack.multiple};
    append_method(connection.output(), number, AMQP_BASIC_ACK_METHOD, &method);
}

// Requeues the messages by a request. A quorum queue counts those that are left when a channel ends
// as failed.
void Channel::close(AmqpConnection& connection) {
    std::string& out = connection.output();
    amqp_basic_cancel_t cancel{.consumer_tag = amqp_bytes(consumer_tag), .nowait = 1};
    append_method(out, number, AMQP_BASIC_CANCEL_METHOD, &cancel);
    amqp_basic_nack_t nack{.delivery_tag = 0, .multiple = 1, .requeue = 1};  // tag 0 means all
    append_method(out, number, AMQP_BASIC_NACK_METHOD, &nack);
    append_channel_close(out, number);
    connection.flush();
    arriving_.reset();
    state_ = State::closing;
}

void Channel::forget() {
    state_ = State::closed;
    step_ = Step::open;
    end_.reset();
    arriving_.reset();
    last_tag_ = 0;
}

// -------------------------------------------------------------------------------------------------
// Frames
// -------------------------------------------------------------------------------------------------

void Channel::finish(End::Kind kind, std::string why) {
    if (!end_)
        end_ = {kind, std::move(why)};
    arriving_.reset();
    state_ = State::closed;
}

void Channel::malformed() {
    finish(End::Kind::lost, "the server sent a frame that nobody expects");
}

void Channel::take(AmqpConnection& connection, const Frame& frame, std::vector<Message>& messages) {
    if (state_ == State::closed)
        return;
    const amqp_method_number_t method = AmqpDecoder::number_of(frame);
    if (frame.channel != number) {
        malformed();
    } else if (method == AMQP_CHANNEL_CLOSE_METHOD) {
        closed(connection, frame);
    } else if (state_ == State::closing) {
        if (method == AMQP_CHANNEL_CLOSE_OK_METHOD)
            state_ = State::closed;
    } else if (!arriving_) {
        take_method(connection, frame);
    } else if (!has_header_) {
        take_header(connection, frame);
    } else {
        take_body(frame);
    }
    if (arriving_ && has_header_ && body_left_ == 0)
        messages.push_back(std::move(*std::exchange(arriving_, std::nullopt)));
}

bool Channel::answered(amqp_method_number_t method) {
    static constexpr std::array answers{AMQP_CHANNEL_OPEN_OK_METHOD, AMQP_BASIC_QOS_OK_METHOD,
                                        AMQP_BASIC_CONSUME_OK_METHOD};
    if (step_ == Step::done || method != answers[static_cast<std::size_t>(step_)])
        return false;
    step_ = static_cast<Step>(static_cast<int>(step_) + 1);
    if (step_ == Step::done)
        state_ = State::consuming;
    return true;
}

void Channel::take_method(AmqpConnection& connection, const Frame& frame) {
    const amqp_method_number_t method = AmqpDecoder::number_of(frame);
    if (answered(method))
        return;
    if (state_ == State::consuming && method == AMQP_BASIC_DELIVER_METHOD)
        take_delivery(connection, frame);
    else if (state_ == State::consuming && method == AMQP_BASIC_CANCEL_METHOD)
        finish(
            End::Kind::lost,
            "the server has cancelled the consumer: the queue is deleted, its leader has changed, "
            "or a message was not acknowledged in time");
    else
        malformed();
}

void Channel::take_delivery(AmqpConnection& connection, const Frame& frame) {
    const auto* deliver = connection.decoder().decode<amqp_basic_deliver_t>(frame);
    if (deliver == nullptr || text_of(deliver->consumer_tag) != consumer_tag ||
        deliver->delivery_tag <= last_tag_) {
        malformed();
        return;
    }
    last_tag_ = deliver->delivery_tag;
    arriving_.emplace(Envelope{.tag = deliver->delivery_tag,
                               .redelivered = deliver->redelivered != 0,
                               .routing_key = std::string(text_of(deliver->routing_key))});
    has_header_ = false;
}

void Channel::take_header(AmqpConnection& connection, const Frame& frame) {
    const auto* properties = connection.decoder().decode_properties(frame, body_left_);
    if (properties == nullptr) {
        malformed();
        return;
    }
    if (body_left_ > max_message_size_) {
        finish(End::Kind::too_large, "a message has " + std::to_string(body_left_) +
                                         " bytes, and max_message_size is " +
                                         std::to_string(max_message_size_));
        return;
    }
    has_header_ = true;
    arriving_->envelope.size = frame.payload.size();
    take_properties(arriving_->envelope, *properties);
}

void Channel::take_body(const Frame& frame) {
    if (frame.type != AMQP_FRAME_BODY || frame.payload.empty() ||
        frame.payload.size() > body_left_) {
        malformed();
        return;
    }
    arriving_->body += frame.payload;
    body_left_ -= frame.payload.size();
}

// The server says that something is missing, forbidden or impossible while the channel opens. Later
// it closes a channel when an acknowledgement takes too long.
void Channel::closed(AmqpConnection& connection, const Frame& frame) {
    const auto* close = connection.decoder().decode<amqp_channel_close_t>(frame);
    if (close == nullptr) {
        malformed();
        return;
    }
    const bool is_refused =
        state_ == State::opening &&
        (close->reply_code == AMQP_ACCESS_REFUSED || close->reply_code == AMQP_NOT_FOUND ||
         close->reply_code == AMQP_PRECONDITION_FAILED ||
         close->reply_code == AMQP_NOT_IMPLEMENTED);
    std::string why = outbox::explain_close(close->reply_code, close->reply_text);
    append_channel_close_ok(connection.output(), number);
    connection.flush();
    finish(is_refused ? End::Kind::refused : End::Kind::lost, std::move(why));
}

}  // namespace inbox::rabbitmq
