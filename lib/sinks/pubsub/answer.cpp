#include "sinks/pubsub/answer.hpp"

#include <algorithm>
#include <array>

#include "net/exchange.hpp"
#include "net/json.hpp"

namespace outbox {

namespace {

// https://cloud.google.com/pubsub/docs/reference/error-codes. Errors of a topic, or of our rights
// to it, concern the lane. Errors of the project or of our identity concern the destination. An
// invalid message concerns its event.
struct Code {
    std::string_view status;
    int http;  // used if the body has no status; 0 for never
    Fate fate;
    Scope scope = Scope::destination;
};
constexpr std::array codes{
    Code{"ABORTED", 409, Fate::unavailable, Scope::lane},
    Code{"ALREADY_EXISTS", 0, Fate::unavailable, Scope::lane},
    Code{"CANCELLED", 499, Fate::failed},
    Code{"DATA_LOSS", 0, Fate::failed},
    Code{"DEADLINE_EXCEEDED", 504, Fate::failed},
    Code{"FAILED_PRECONDITION", 0, Fate::unavailable, Scope::lane},
    Code{"INTERNAL", 500, Fate::failed},
    Code{"INVALID_ARGUMENT", 400, Fate::refused},
    Code{"NOT_FOUND", 404, Fate::unavailable, Scope::lane},
    Code{"OUT_OF_RANGE", 0, Fate::refused},
    Code{"PERMISSION_DENIED", 403, Fate::unavailable, Scope::lane},
    Code{"RESOURCE_EXHAUSTED", 429, Fate::throttled},
    Code{"UNAUTHENTICATED", 401, Fate::unavailable},
    Code{"UNAVAILABLE", 503, Fate::throttled},
    Code{"UNIMPLEMENTED", 501, Fate::unavailable},
    Code{"UNKNOWN", 0, Fate::failed},
};

const Code* code_of(std::string_view status, int http) {
    const auto code = std::find_if(codes.begin(), codes.end(), [&](const Code& c) {
        return status.empty() ? c.http == http : c.status == status;
    });
    return code == codes.end() ? nullptr : &*code;
}

}  // namespace

ServiceError ServiceError::of(const Exchange& exchange) {
    ServiceError error;
    if (exchange.status == 0)
        return error;
    if (const std::optional<Json::Value> body = parse_json(exchange.body))
        if (const Json::Value* said = json_member(*body, "error")) {
            error.status = json_text(*said, "status");
            error.message = json_text(*said, "message");
            conceal_secrets(exchange, error.message);
        }
    if (code_of(error.status, exchange.status) == nullptr || error.status.empty()) {
        const Code* code = code_of("", exchange.status);
        error.status = code == nullptr ? "" : code->status;
    }
    return error;
}

std::string ServiceError::explain(const Exchange& exchange) const {
    if (status.empty())
        return outbox::explain(exchange);
    if (message.empty())
        return status + ": " + outbox::explain(exchange);
    return status + ": " + printable(std::string_view(message).substr(0, 300));
}

Verdict verdict_on(const Exchange& exchange, const ServiceError& error, std::string_view topic) {
    const int http = exchange.status;
    if (http == 0)
        return {exchange.reached ? Fate::failed : Fate::unavailable, false, exchange.scope};
    if (http == 413)  // too large for a proxy in front of the service
        return {Fate::refused, true};
    const Code* code = error.status.empty() ? nullptr : code_of(error.status, 0);
    if (code == nullptr)
        return {http >= 500 || http == 408 ? Fate::failed : Fate::unavailable};
    // Only the project in the name of a topic has not been checked, and it is the same for all
    // events.
    if (code->fate == Fate::refused && error.message.find(topic) != std::string::npos)
        return {Fate::unavailable};
    return {code->fate, false, code->scope};
}

std::optional<std::vector<std::string>> message_ids_of(std::string_view body) {
    const std::optional<Json::Value> answer = parse_json(body);
    const Json::Value* members = answer ? json_member(*answer, "messageIds") : nullptr;
    if (members == nullptr || !members->isArray())
        return std::nullopt;
    std::vector<std::string> ids;
    ids.reserve(members->size());
    for (const Json::Value& member : *members) {
        if (!member.isString())
            return std::nullopt;
        ids.push_back(member.asString());
    }
    return ids;
}

}  // namespace outbox
