// Turns an event into the parts of a message: topic, properties and payload.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/exchange.hpp"
#include "sinks/mqtt/options.hpp"

namespace outbox {

class MqttMessage {
  public:
    explicit MqttMessage(const MqttOptions& options);

    // Returns std::nullopt, or why the event cannot be a message. May throw std::bad_alloc.
    std::optional<std::string> assign(const Event& event);

    // Valid until the next assign(), and as long as the event.
    std::string_view topic() const noexcept { return topic_; }
    std::string_view properties() const noexcept { return properties_; }
    std::string_view payload() const noexcept { return payload_; }

    // Returns an upper bound for the size of the message, for events of usual sizes.
    static std::size_t size_of(const Event& event) noexcept;

  private:
    void check(std::string_view name, std::string_view value);
    void add(std::string_view name, std::string_view value);
    void add_content_type(std::string_view type);
    void add_attributes(const Event& event);
    void add_cloud_event(const Event& event);
    void add_document(const Event& event);

    const MqttOptions& options_;
    const std::string source_prefix_;
    std::string topic_, properties_;
    std::string_view payload_;
    const char* illegal_ = nullptr;  // why a property cannot be sent
    std::string_view illegal_name_;
    RequestContent document_;
};

}  // namespace outbox
