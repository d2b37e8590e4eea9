// Makes requests of events: CloudEvents in the form of the option `format`, with the headers that
// all requests of the destination have.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/event.hpp"
#include "net/exchange.hpp"
#include "sinks/event_format.hpp"
#include "sinks/http/webhook_signature.hpp"

namespace outbox {

class EventRequests {
  public:
    // `headers` are lines "Name: value". If requests are signed, neither they nor events can set
    // the headers of the signature.
    EventRequests(EventFormat format, std::string_view source, const std::string& headers,
                  bool are_signed);

    // The value of the header Authorization among these headers, or empty. It is not part of the
    // requests: the transport adds it.
    const std::string& authorization() const noexcept { return authorization_; }

    // Makes the request. Its body may point into an event.
    void encode(std::span<Event* const> events, RequestContent& content) const;
    // Signs a request that is otherwise complete.
    void sign(std::span<Event* const> events, WebhookSigner& signer, Micros unix_now,
              RequestContent& content);

  private:
    const EventFormat format_;
    const std::string source_prefix_;
    std::string authorization_;
    std::string fixed_headers_;             // of each request, as lines
    std::vector<std::string> fixed_names_;  // headers that an event cannot set
    std::string id_;                        // scratch space
};

}  // namespace outbox
