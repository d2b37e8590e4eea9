// A template of a name that is made from an event: "{topic}", "orders-{event_type}.fifo".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/event.hpp"
#include "core/result.hpp"

namespace outbox {

class TextTemplate {
  public:
    // Names of topics and queues are few. A route, such as a routing key, may differ in each event.
    enum class Kind { name, route };

    // Fields are written in braces: topic, aggregate_type, event_type, database; for routes also
    // aggregate_id and ordering_key. Braces cannot be escaped: no name that is made here may contain
    // one.
    static Result<TextTemplate> parse(std::string_view text, Kind kind = Kind::name);

    // Appends the name for this event. May throw std::bad_alloc.
    void append_to(std::string& out, const Event& event, std::string_view database) const;

    // The same, with each value of a field appended by `encode`, for names that a value could break out
    // of. `of_route`: the field is one that only routes have.
    using Encode = void (*)(std::string& out, std::string_view value, bool of_route);
    void append_encoded(std::string& out, const Event& event, std::string_view database,
                        Encode encode) const;

    bool empty() const noexcept { return parts_.empty(); }
    // True if all events have the same name.
    bool is_constant() const noexcept;
    bool ends_with(std::string_view suffix) const noexcept;
    // True if the name depends on nothing but the topic.
    bool needs_only_topic() const noexcept;

  private:
    struct Part {
        enum class Kind {
            text,
            topic,
            aggregate_type,
            event_type,
            database,
            aggregate_id,
            ordering_key
        } kind;
        std::string text;  // only if kind is text
    };
    std::vector<Part> parts_;
};

}  // namespace outbox
