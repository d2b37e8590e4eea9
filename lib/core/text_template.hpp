// A name made from an event: "{topic}", "orders-{event_type}.fifo".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/event.hpp"
#include "core/result.hpp"

namespace outbox {

class TextTemplate {
  public:
    // Fields stand in braces: topic, aggregate_type, event_type, database. There is no way to write
    // a brace; no name that is made here can have one.
    static Result<TextTemplate> parse(std::string_view text);

    // Appends what it makes of the event. May throw std::bad_alloc.
    void append_to(std::string& out, const Event& event, std::string_view database) const;

    bool empty() const noexcept { return parts_.empty(); }
    // The same for all events?
    bool is_constant() const noexcept;
    bool ends_with(std::string_view suffix) const noexcept;
    // Is it made from topics alone, so that a topic tells the name?
    bool needs_only_topic() const noexcept;

  private:
    struct Part {
        enum class Kind { text, topic, aggregate_type, event_type, database } kind;
        std::string text;  // of the kind text
    };
    std::vector<Part> parts_;
};

}  // namespace outbox
