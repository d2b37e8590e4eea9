// What answers of Pub/Sub mean.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sink.hpp"
#include "net/exchange.hpp"

namespace outbox {

// So much of an answer to so many events must be kept.
constexpr std::size_t kept_answer(std::size_t events) {
    return 16 * 1024 + 64 * events;
}

// Why a request was not successful, in the service's own terms.
struct ServiceError {
    std::string status;   // canonical, such as NOT_FOUND; empty: the answer is not the service's
    std::string message;  // its own words

    static ServiceError of(const Exchange& exchange);

    // One line, for any request that was not successful.
    std::string explain(const Exchange& exchange) const;
};

struct Verdict {
    Fate fate;
    bool permanent = false;
    Scope scope = Scope::destination;
};

// On a publish request that was not successful. `topic`: "projects/<project>/topics/<id>".
Verdict verdict_on(const Exchange& exchange, const ServiceError& error, std::string_view topic);

// Of a successful one: what the service calls each message, in order. Nothing: the answer is not
// what it should be.
std::optional<std::vector<std::string>> message_ids_of(std::string_view body);

}  // namespace outbox
