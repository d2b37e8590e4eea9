// Interprets the answers of Pub/Sub.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sink.hpp"
#include "net/exchange.hpp"

namespace outbox {

// Number of bytes of an answer that must be kept for this number of events.
constexpr std::size_t kept_answer(std::size_t events) {
    return 16 * 1024 + 64 * events;
}

// The reason why a request failed, in the service's own terms.
struct ServiceError {
    // Canonical, such as NOT_FOUND; empty if the answer is not from the service.
    std::string status;
    std::string message;  // the service's own text

    static ServiceError of(const Exchange& exchange);

    // Describes any request that failed, in one line.
    std::string explain(const Exchange& exchange) const;
};

struct Verdict {
    Fate fate;
    bool permanent = false;
    Scope scope = Scope::destination;
};

// Judges a publish request that failed. `topic` is "projects/<project>/topics/<id>".
Verdict verdict_on(const Exchange& exchange, const ServiceError& error, std::string_view topic);

// Returns the ids that the service gave to the messages, in order, or std::nullopt if the answer is
// malformed.
std::optional<std::vector<std::string>> message_ids_of(std::string_view body);

}  // namespace outbox
