#include "sinks/pubsub/limits.hpp"

namespace outbox {

static std::string named(std::string_view name) {
    return "attribute \"" + std::string(name) + "\"";
}

void MessageLimits::ordering_key(std::string_view key) {
    size_ += key.size();
    if (key.size() > max_ordering_key)
        too_long("ordering key", key.size(), max_ordering_key);
}

void MessageLimits::attribute(std::string_view name, std::string_view value) {
    size_ += name.size() + value.size() + attribute_overhead;
    attributes_++;
    if (name.size() > max_attribute_name)
        too_long("name of an attribute", name.size(), max_attribute_name);
    if (value.size() > max_attribute_value)
        too_long(named(name), value.size(), max_attribute_value);
    if (name.starts_with("goog") && broken_.empty())
        broken_ = named(name) + " has a reserved name: it starts with \"goog\"";
}

void MessageLimits::too_long(std::string what, std::size_t size, std::size_t limit) {
    if (broken_.empty())
        broken_ = std::move(what) + " has " + std::to_string(size) + " bytes; Pub/Sub takes " +
                  std::to_string(limit);
}

std::optional<std::string> MessageLimits::broken() const {
    if (!broken_.empty())
        return broken_;
    if (attributes_ > max_attributes)
        return "message has " + std::to_string(attributes_) + " attributes; Pub/Sub takes " +
               std::to_string(max_attributes);
    if (size_ > max_size)
        return "message has " + std::to_string(size_) + " bytes; Pub/Sub takes " +
               std::to_string(max_size);
    return std::nullopt;
}

}  // namespace outbox
