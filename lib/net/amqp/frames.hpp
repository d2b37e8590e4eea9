// Frames of AMQP 0-9-1, as RabbitMQ speaks it. rabbitmq-c encodes and decodes methods and properties; it
// never touches a socket here.
//
// The peer is not trusted. A frame larger than agreed is malformed. The decoder of rabbitmq-c calls itself
// for each level of a table, so is_shallow() looks at tables first, and limits their depth.
#pragma once

// rabbitmq-c 0.12 has moved its headers.
#if __has_include(<rabbitmq-c/framing.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/framing.h>
#else
#include <amqp.h>
#include <amqp_framing.h>
#endif

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace outbox {

struct Frame {
    std::uint8_t type = 0;
    std::uint16_t channel = 0;
    std::string_view payload;
};

inline constexpr std::size_t frame_overhead = 8;  // its head of 7 bytes, and the byte at its end

enum class Framing { complete, incomplete, malformed };

// Reads the frame at the start of `bytes`, of at most `max_size` bytes with its overhead.
Framing read_frame(std::string_view bytes, std::size_t max_size, Frame& frame) noexcept;

inline amqp_bytes_t amqp_bytes(std::string_view text) noexcept {
    return {text.size(), const_cast<char*>(text.data())};
}
inline std::string_view text_of(amqp_bytes_t bytes) noexcept {
    return {static_cast<const char*>(bytes.bytes), bytes.len};
}

// Longest name of an exchange, a routing key or a header.
inline constexpr std::size_t max_short_string = 255;

// These append to what will be sent. They throw std::bad_alloc.

// Strings of the method must be short enough.
void append_method(std::string& out, std::uint16_t channel, amqp_method_number_t number,
                   void* method);
void append_heartbeat(std::string& out);
void append_channel_open(std::string& out, std::uint16_t channel);
void append_channel_close(std::string& out, std::uint16_t channel);
// Confirms that the server has closed it.
void append_channel_close_ok(std::string& out, std::uint16_t channel);
// Appends the frames of a message's content. Returns false, and appends nothing, if the properties do not
// fit into a frame.
bool append_content(std::string& out, std::uint16_t channel, std::size_t max_frame,
                    amqp_basic_properties_t& properties, std::string_view body);

// Returns whether a table is well-formed and not too deep to be decoded. `bytes` begins with it.
bool is_shallow(std::string_view bytes) noexcept;

// Decodes the frames of a peer. Results of decode() are valid until the next call.
class AmqpDecoder {
  public:
    AmqpDecoder();
    ~AmqpDecoder();
    AmqpDecoder(const AmqpDecoder&) = delete;
    AmqpDecoder& operator=(const AmqpDecoder&) = delete;

    // Returns the number of a method, or 0 if the frame has none.
    static amqp_method_number_t number_of(const Frame& frame) noexcept;

    // Returns nullptr if the frame is malformed. `Method` must belong to its number. May throw
    // std::bad_alloc, as the next one.
    template <class Method>
    const Method* decode(const Frame& frame) {
        return static_cast<const Method*>(decode_method(frame));
    }

    // The properties of a message, and the size of its body. Returns nullptr if they are malformed.
    const amqp_basic_properties_t* decode_properties(const Frame& frame, std::uint64_t& body_size);

  private:
    const void* decode_method(const Frame& frame);

    amqp_pool_t pool_;
};

}  // namespace outbox
