// Limits of a Pub/Sub message (https://cloud.google.com/pubsub/quotas). They are checked before
// sending, so that only the event at fault is refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// The limits of one message. Add its parts, then call broken().
class MessageLimits {
  public:
    static constexpr std::size_t max_size = 10'000'000;  // of a request, in protobuf
    static constexpr std::size_t max_ordering_key = 1024;
    static constexpr std::size_t max_attributes = 100;
    static constexpr std::size_t max_attribute_name = 256;
    static constexpr std::size_t max_attribute_value = 1024;
    // Bytes that protobuf adds: tags and lengths, and the name of the topic.
    static constexpr std::size_t overhead = 400;
    static constexpr std::size_t attribute_overhead = 9;

    void data(std::size_t size) noexcept { size_ += size; }
    void ordering_key(std::string_view key);
    void attribute(std::string_view name, std::string_view value);

    // Describes the first limit that is exceeded.
    std::optional<std::string> broken() const;

  private:
    void too_long(std::string what, std::size_t size, std::size_t limit);

    std::size_t size_ = overhead;
    std::size_t attributes_ = 0;
    std::string broken_;
};

}  // namespace outbox
