// What a message of Pub/Sub may be at most (https://cloud.google.com/pubsub/quotas). Checked before
// it is sent, so that the event it was made from can be told why it is refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Of one message. Tell it what the message consists of, then ask what is wrong.
class MessageLimits {
  public:
    static constexpr std::size_t max_size = 10'000'000;  // of a request, as protobuf has it
    static constexpr std::size_t max_ordering_key = 1024;
    static constexpr std::size_t max_attributes = 100;
    static constexpr std::size_t max_attribute_name = 256;
    static constexpr std::size_t max_attribute_value = 1024;
    // What protobuf adds: tags and lengths, and the name of the topic.
    static constexpr std::size_t overhead = 400;
    static constexpr std::size_t attribute_overhead = 9;

    void data(std::size_t size) noexcept { size_ += size; }
    void ordering_key(std::string_view key);
    void attribute(std::string_view name, std::string_view value);

    // The first limit that is broken, in words.
    std::optional<std::string> broken() const;

  private:
    void too_long(std::string what, std::size_t size, std::size_t limit);

    std::size_t size_ = overhead;
    std::size_t attributes_ = 0;
    std::string broken_;
};

}  // namespace outbox
