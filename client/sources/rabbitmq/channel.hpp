// The channel by which a source consumes its queue: opens it, puts messages together, acknowledges.
//
//   open()    sends all requests at once; the server answers them in this order
//   take()    takes each frame of the connection
//   end()     why it has ended, if it has
//   close()   gives back what is not acknowledged
//
// The peer is not trusted. It may send only what is allowed in the present state, a body is read
// only if it is within the limit, and the number of messages that are not acknowledged is limited.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "net/amqp/connection.hpp"
#include "rabbitmq/claims.hpp"
#include "rabbitmq/delivery.hpp"

namespace inbox::rabbitmq {

// Where a stream is read from.
struct Begin {
    std::optional<std::int64_t> offset{};
    std::optional<Time> time{};  // if there is no offset
    // If there is neither: behind the last message, or with the last ones that are there.
    bool at_end = false;
    bool at_last = false;
};

class Channel {
  public:
    enum class State { closed, opening, consuming, closing };
    struct End {
        enum class Kind {
            lost,       // trying again may help
            refused,    // by the server, which will refuse again unless something changes there
            too_large,  // a message; the same each time
        };
        Kind kind;
        std::string why;
    };

    Channel(std::string queue, std::uint16_t prefetch, std::size_t max_message_size)
        : queue_(std::move(queue)), prefetch_(prefetch), max_message_size_(max_message_size) {}

    State state() const noexcept { return state_; }
    const std::optional<End>& end() const noexcept { return end_; }

    // The functions below append to the output of the connection. They may throw std::bad_alloc.
    // Only streams have `begin`.
    void open(outbox::AmqpConnection& connection, const std::optional<Begin>& begin);
    // Appends messages that have arrived completely.
    void take(outbox::AmqpConnection& connection, const outbox::Frame& frame,
              std::vector<Message>& messages);
    void ack(outbox::AmqpConnection& connection, Claims::Ack ack);
    void close(outbox::AmqpConnection& connection);
    // To be called when the connection has ended.
    void forget();

  private:
    enum class Step { open, prefetch, consume, done };

    bool answered(amqp_method_number_t method);
    void take_method(outbox::AmqpConnection& connection, const outbox::Frame& frame);
    void take_delivery(outbox::AmqpConnection& connection, const outbox::Frame& frame);
    void take_header(outbox::AmqpConnection& connection, const outbox::Frame& frame);
    void take_body(const outbox::Frame& frame);
    void closed(outbox::AmqpConnection& connection, const outbox::Frame& frame);
    void finish(End::Kind kind, std::string why);
    void malformed();

    const std::string queue_;
    const std::uint16_t prefetch_;
    const std::size_t max_message_size_;
    State state_ = State::closed;
    Step step_ = Step::open;
    std::optional<End> end_;

    // The message that is arriving.
    std::optional<Message> arriving_;
    bool has_header_ = false;
    std::uint64_t body_left_ = 0;
    std::uint64_t last_tag_ = 0;
};

}  // namespace inbox::rabbitmq
