// An event as an entry of PutEvents. Rules of an event bus match its parts:
//
//   part         from
//   source       the option `source`
//   detail-type  the event type
//   time         occurred_at, in seconds
//   detail       a CloudEvents document, or the payload, which must be a JSON object then
//
// A traceparent of the event is also sent as the header that X-Ray reads.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/event.hpp"
#include "core/text_template.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct EntryStyle {
    EventFormat format = EventFormat::structured;  // or `payload`
    std::string source_prefix{};                   // of CloudEvents
    TextTemplate source{};                         // of entries
    std::size_t source_text = 0;                   // length of that option
    std::string database{};
};

// Returns "Root=1-...;Parent=...;Sampled=1", or an empty text if it is not a traceparent.
std::string trace_header_of(std::string_view traceparent);

class EventBridgeEntry {
  public:
    // Turns this into the entry of an event, which must outlive it. Reuses memory. Returns why the
    // event cannot be sent, or std::nullopt. May throw std::bad_alloc.
    std::optional<std::string> assign(const Event& event, const EntryStyle& style);

    // The size that counts towards the limit of the service.
    std::size_t size() const;
    // Appends the entry to a list in a request.
    void append_to(std::string& body, std::string_view bus) const;

  private:
    const Event* event_ = nullptr;
    std::string source_;
    std::string_view detail_;
    std::string document_;  // `detail_` may point to it
    std::string trace_header_;
};

// Returns an upper bound of EventBridgeEntry::size().
std::size_t entry_size_bound(const Event& event, const EntryStyle& style) noexcept;

}  // namespace outbox
