// Interpretation of answers of Pub/Sub.
#include "sinks/pubsub/answer.hpp"

#include <gtest/gtest.h>

#include "unit/mutations.hpp"

namespace outbox {
namespace {

constexpr std::string_view topic = "projects/p/topics/videos";

Exchange answered(int status, std::string body) {
    Exchange exchange;
    exchange.status = status;
    exchange.reached = true;
    exchange.body = std::move(body);
    return exchange;
}

std::string error_body(const std::string& status, const std::string& message = "as it is") {
    return R"({"error":{"code":1,"message":")" + message + R"(","status":")" + status + R"("}})";
}

Verdict verdict(const Exchange& exchange) {
    return verdict_on(exchange, ServiceError::of(exchange), topic);
}

TEST(PubsubAnswer, GoesByTheCanonicalStatus) {
    const struct {
        int http;
        const char* status;
        Fate fate;
    } table[] = {
        {504, "DEADLINE_EXCEEDED", Fate::failed},
        {503, "UNAVAILABLE", Fate::throttled},
        {500, "INTERNAL", Fate::failed},
        {500, "UNKNOWN", Fate::failed},
        {500, "DATA_LOSS", Fate::failed},
        {409, "ABORTED", Fate::unavailable},
        {409, "ALREADY_EXISTS", Fate::unavailable},
        {499, "CANCELLED", Fate::failed},
        {429, "RESOURCE_EXHAUSTED", Fate::throttled},
        {400, "FAILED_PRECONDITION", Fate::unavailable},
        {400, "INVALID_ARGUMENT", Fate::refused},
        {400, "OUT_OF_RANGE", Fate::refused},
        {404, "NOT_FOUND", Fate::unavailable},
        {403, "PERMISSION_DENIED", Fate::unavailable},
        {401, "UNAUTHENTICATED", Fate::unavailable},
        {501, "UNIMPLEMENTED", Fate::unavailable},
    };
    for (const auto& [http, status, fate] : table) {
        const Exchange exchange = answered(http, error_body(status));
        EXPECT_EQ(verdict(exchange).fate, fate) << status;
        EXPECT_FALSE(verdict(exchange).permanent) << status;
        EXPECT_EQ(ServiceError::of(exchange).explain(exchange), std::string(status) + ": as it is");
    }
}

// An answer about quotas, keys, billing, regions or rights is not the event's fault. The reasons are
// those of the service's page of errors.
TEST(PubsubAnswer, TellsAnOutageFromARefusal) {
    const struct {
        int http;
        const char* status;
        const char* message;
        Fate fate;
        Scope scope = Scope::destination;
    } table[] = {
        {429, "RESOURCE_EXHAUSTED",
         "Quota exceeded for quota metric 'Regional publisher throughput, kB'", Fate::throttled},
        {429, "RESOURCE_EXHAUSTED", "Ordering key throughput exceeded", Fate::throttled},
        {503, "UNAVAILABLE", "The service was unable to fulfill your request. Please try again.",
         Fate::throttled},
        {400, "FAILED_PRECONDITION",
         "Cloud Pub/Sub did not have the necessary permissions to access the KMS key, or it is "
         "disabled",
         Fate::unavailable, Scope::lane},
        {400, "FAILED_PRECONDITION", "Billing is not enabled for the project", Fate::unavailable,
         Scope::lane},
        {400, "FAILED_PRECONDITION",
         "The request was received in a region that the message storage policy does not allow",
         Fate::unavailable, Scope::lane},
        {403, "PERMISSION_DENIED", "User not authorized to perform this action.", Fate::unavailable,
         Scope::lane},
        {403, "PERMISSION_DENIED",
         "Cloud Pub/Sub API has not been used in project p before or it is disabled.",
         Fate::unavailable, Scope::lane},
        {404, "NOT_FOUND", "Resource not found (resource=videos).", Fate::unavailable, Scope::lane},
        {401, "UNAUTHENTICATED", "Request had invalid authentication credentials.",
         Fate::unavailable},
        // Nobody knows.
        {500, "INTERNAL", "Internal error encountered.", Fate::failed},
        {502, "BAD_GATEWAY", "A server in between", Fate::failed},
        {504, "DEADLINE_EXCEEDED", "Deadline expired before operation could complete.",
         Fate::failed},
        // These are about the event.
        {400, "INVALID_ARGUMENT", "The value for message_size is too large.", Fate::refused},
        {400, "INVALID_ARGUMENT", "Message violates the schema: does not match", Fate::refused},
    };
    for (const auto& [http, status, message, fate, scope] : table) {
        const Verdict found = verdict(answered(http, error_body(status, message)));
        EXPECT_EQ(found.fate, fate) << status << ": " << message;
        EXPECT_EQ(found.scope, scope) << status << ": " << message;
    }
}

TEST(PubsubAnswer, GoesByTheStatusOfHttpWhenTheBodyDoesNotSay) {
    const struct {
        int http;
        Fate fate;
    } table[] = {{302, Fate::unavailable}, {400, Fate::refused},     {401, Fate::unavailable},
                 {403, Fate::unavailable}, {404, Fate::unavailable}, {405, Fate::unavailable},
                 {408, Fate::failed},      {409, Fate::unavailable}, {429, Fate::throttled},
                 {499, Fate::failed},      {500, Fate::failed},      {502, Fate::failed},
                 {503, Fate::throttled},   {504, Fate::failed},      {599, Fate::failed}};
    for (const auto& [http, fate] : table)
        for (const std::string& body : {std::string(), std::string("<html>no</html>"),
                                        error_body("NOT_HEARD_OF"), std::string("[[")})
            EXPECT_EQ(verdict(answered(http, body)).fate, fate) << http << " " << body;
    EXPECT_EQ(verdict(answered(413, "")).fate, Fate::refused);
    EXPECT_TRUE(verdict(answered(413, "")).permanent);
    const Exchange gateway = answered(502, "<html>no</html>");
    EXPECT_EQ(ServiceError::of(gateway).explain(gateway), "HTTP 502: <html>no</html>");
    const Exchange nobody = answered(404, "");
    EXPECT_EQ(ServiceError::of(nobody).explain(nobody), "NOT_FOUND: HTTP 404");
}

TEST(PubsubAnswer, AMissingOneIsJudgedByWhetherTheRequestArrived) {
    Exchange exchange;
    exchange.fail("could not connect");
    EXPECT_EQ(verdict(exchange).fate, Fate::unavailable);
    EXPECT_EQ(ServiceError::of(exchange).explain(exchange), "could not connect");
    exchange.reached = true;
    EXPECT_EQ(verdict(exchange).fate, Fate::failed);
}

TEST(PubsubAnswer, AnInvalidTopicIsNotTheEventsFault) {
    const Exchange exchange = answered(
        400, error_body("INVALID_ARGUMENT", "Invalid name: (name=projects/p/topics/videos)"));
    EXPECT_EQ(verdict(exchange).fate, Fate::unavailable);
}

TEST(PubsubAnswer, ErrorsAreOneLine) {
    const Exchange exchange = answered(403, error_body("PERMISSION_DENIED", "one\\ntwo"));
    EXPECT_EQ(ServiceError::of(exchange).explain(exchange), "PERMISSION_DENIED: one two");
    const Exchange wordy = answered(403, error_body("PERMISSION_DENIED", std::string(5'000, 'x')));
    EXPECT_LT(ServiceError::of(wordy).explain(wordy).size(), 400u);
}

TEST(PubsubAnswer, HasAnIdForEachMessage) {
    EXPECT_EQ(message_ids_of("{\n  \"messageIds\": [\"17\", \"18\"]\n}\n"),
              (std::vector<std::string>{"17", "18"}));
    EXPECT_EQ(message_ids_of(R"({"messageIds":[],"more":{}})"), std::vector<std::string>{});
    for (const char* wrong :
         {"", "{}", "[]", "null", R"({"messageIds":"17"})", R"({"messageIds":[17]})",
          R"({"messageIds":["17",null]})", R"({"messageIds":["17"])", R"({"messageIds":["17",]})"})
        EXPECT_EQ(message_ids_of(wrong), std::nullopt) << wrong;
    EXPECT_EQ(message_ids_of(std::string(100'000, '[')), std::nullopt);
}

TEST(PubsubAnswer, ATokenThatComesBackIsNotShown) {
    Exchange exchange = answered(403, error_body("PERMISSION_DENIED", "not you: t\\u006fken-1234"));
    exchange.content.headers = "Authorization: Bearer token-1234\r\n";
    EXPECT_EQ(ServiceError::of(exchange).explain(exchange), "PERMISSION_DENIED: not you: ***");
}

TEST(PubsubAnswer, AThousandIdsAreKept) {
    std::string body = "{\n  \"messageIds\": [\n";
    for (int i = 0; i < 1'000; i++)
        body += std::string(i == 0 ? "" : ",\n") + "    \"" +
                std::to_string(1'000'000'000'000'000 + i) + "\"";
    body += "\n  ]\n}\n";
    EXPECT_LE(body.size(), kept_answer(1'000));
    EXPECT_EQ(message_ids_of(body)->size(), 1'000u);
}

TEST(PubsubAnswer, AnyAnswerHasAVerdict) {
    Mutations bodies({error_body("NOT_FOUND"), error_body("INVALID_ARGUMENT", "\\ud800"),
                      R"({"messageIds":["1","2"]})", R"({"error":[{"status":5}]})", "<html>"},
                     R"({}[]":,\u0n1)");
    for (int i = 0; i < 20'000; i++) {
        const Exchange exchange =
            answered(200 + static_cast<int>(bodies.below(400)), bodies.next());
        const ServiceError error = ServiceError::of(exchange);
        const std::string words = error.explain(exchange);
        EXPECT_FALSE(words.empty());
        EXPECT_EQ(words.find('\n'), std::string::npos);
        verdict_on(exchange, error, topic);
        message_ids_of(exchange.body);
    }
}

}  // namespace
}  // namespace outbox
