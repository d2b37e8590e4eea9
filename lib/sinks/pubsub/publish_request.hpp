// Encodes events as the body of a publish request. It is JSON, see
// https://cloud.google.com/pubsub/docs/reference/rest/v1/PubsubMessage.
//
//   format      data                     attributes
//   attributes  the payload              event_id, event_type, aggregate_type, aggregate_id,
//                                        version, schema_version, occurred_at, content_type, and
//                                        the headers
//   binary      the payload              ce-<CloudEvents attribute>, content-type, other headers
//   structured  a CloudEvents document   content-type, headers that are not in the document
//
// Attributes without a value are omitted. So are headers with the name of one of these attributes.
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

    // Returns the limit that one of the events exceeds, if any. The body must not be used then.
    std::optional<std::string> encode(std::span<Event* const> events, std::string& body);

    // Estimates the bytes that the event adds to the body.
    static std::size_t size_of(const Event& event) noexcept;

  private:
    std::optional<std::string> append(std::string& out, const Event& event);

    EventFormat format_;
    std::string source_prefix_;
    RequestContent document_;  // of a structured event
};

}  // namespace outbox
