// Events as the body of a publish request: JSON, see
// https://cloud.google.com/pubsub/docs/reference/rest/v1/PubsubMessage.
//
//   format      data                     attributes
//   attributes  the payload              event_id, event_type, aggregate_type, aggregate_id,
//   version,
//                                        schema_version, occurred_at, content_type, and the headers
//   binary      the payload              ce-<CloudEvents attribute>, content-type, other headers
//   structured  a CloudEvents document   content-type, headers that are not in the document
//
// What an event does not have is left out. A header that bears the name of an attribute of ours
// gives way.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/event.hpp"
#include "net/exchange.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

class PublishEncoder {
  public:
    PublishEncoder(EventFormat format, std::string_view database);

    // Which limit one of the events breaks, if one does: the body is of no use then.
    std::optional<std::string> encode(std::span<Event* const> events, std::string& body);

    // About what it adds to the body.
    static std::size_t size_of(const Event& event) noexcept;

  private:
    std::optional<std::string> append(std::string& out, const Event& event);

    EventFormat format_;
    std::string source_prefix_;
    RequestContent document_;  // of a structured event
};

}  // namespace outbox
