#include "sinks/nats/verdict.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace outbox {
namespace {

using testing::HasSubstr;

NatsVerdict of(std::string_view payload, std::string_view headers = "",
               std::optional<std::uint64_t> expected = std::nullopt) {
    return verdict_of({.kind = NatsInput::Kind::message, .headers = headers, .payload = payload},
                      "a.b", expected);
}

EventOutcome of_error(int code, int error, const std::string& text,
                      std::optional<std::uint64_t> expected = std::nullopt) {
    const std::string payload = "{\"error\":{\"code\":" + std::to_string(code) +
                                ",\"err_code\":" + std::to_string(error) + ",\"description\":\"" +
                                text + "\"},\"stream\":\"S\",\"seq\":0}";
    return of(payload, "", expected).outcome;
}

TEST(NatsVerdict, AnAcknowledgementConfirms) {
    for (const char* payload :
         {R"({"stream":"S","seq":7})", R"({"stream":"S", "seq":7})",
          R"({"stream":"S","seq":7,"duplicate":true})", R"({"stream":"S","domain":"D","seq":7})",
          R"({"seq":7,"stream":"S"})", R"( {"type":"x","stream":"S","seq":7})"}) {
        const NatsVerdict verdict = of(payload);
        EXPECT_EQ(verdict.outcome.fate, Fate::confirmed) << payload;
        EXPECT_EQ(verdict.stream, "S") << payload;
        EXPECT_EQ(verdict.sequence, 7u) << payload;
    }
}

TEST(NatsVerdict, AnythingElseIsNoAcknowledgement) {
    for (const char* payload :
         {"", "ok", "+ACK", "{}", "[]", "null", R"({"stream":"S"})", R"({"stream":"","seq":7})",
          R"({"stream":"S","seq":0})", R"({"stream":"S","seq":-1})", R"({"stream":"S","seq":"7"})",
          R"({"stream":"S","seq":7)", R"({"stream":"S","seq":7} x)", R"({"stream":1,"seq":7})"})
        EXPECT_EQ(of(payload).outcome.fate, Fate::failed) << payload;
}

TEST(NatsVerdict, AMissingStreamFailsTheLane) {
    const EventOutcome outcome = of("", "NATS/1.0 503\r\n\r\n").outcome;
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.error, HasSubstr("a.b"));
    EXPECT_EQ(of("", "NATS/1.0 408 Timeout\r\n\r\n").outcome.fate, Fate::failed);
}

TEST(NatsVerdict, ErrorsHaveTheSmallestScope) {
    struct Case {
        int code, error;
        const char* text;
        Fate fate;
        bool permanent;
        Scope scope;
    };
    const Scope none = Scope::destination;
    for (const Case& one :
         {Case{400, 10054, "message size exceeds maximum allowed", Fate::refused, true, none},
          Case{400, 10097, "header size exceeds maximum", Fate::refused, true, none},
          Case{503, 10077, "message too large", Fate::refused, true, none},
          Case{503, 10077, "maximum messages per subject exceeded", Fate::refused, false, none},
          Case{503, 10077, "maximum bytes exceeded", Fate::unavailable, false, Scope::lane},
          Case{503, 10023, "insufficient resources", Fate::unavailable, false, Scope::lane},
          Case{400, 10002, "resource limits exceeded", Fate::unavailable, false, Scope::lane},
          Case{400, 10060, "expected stream does not match", Fate::unavailable, false, Scope::lane},
          Case{400, 10109, "sealed", Fate::unavailable, false, Scope::lane},
          Case{503, 10076, "not enabled", Fate::unavailable, false, Scope::destination},
          Case{503, 10039, "not enabled", Fate::unavailable, false, Scope::destination},
          Case{409, 10158, "duplicate in process", Fate::failed, false, Scope::lane},
          Case{429, 10167, "too many requests", Fate::throttled, false, Scope::lane},
          Case{429, 1, "", Fate::throttled, false, Scope::lane},
          Case{500, 2, "", Fate::unavailable, false, Scope::lane},
          Case{400, 3, "bad", Fate::refused, false, none}}) {
        const EventOutcome outcome = of_error(one.code, one.error, one.text);
        EXPECT_EQ(outcome.fate, one.fate) << one.error << one.text;
        EXPECT_EQ(outcome.permanent, one.permanent) << one.error << one.text;
        EXPECT_EQ(outcome.scope, one.scope) << one.error << one.text;
        EXPECT_THAT(outcome.error, HasSubstr(one.text));
    }
}

TEST(NatsVerdict, AGuardThatCannotHoldAnyMoreRefusesForGood) {
    EXPECT_TRUE(of_error(400, 10071, "wrong last sequence: 9", 8).permanent);
    EXPECT_FALSE(of_error(400, 10071, "wrong last sequence: 7", 8).permanent);
    EXPECT_FALSE(of_error(400, 10071, "wrong last sequence", 8).permanent);
    EXPECT_FALSE(of_error(400, 10164, "wrong last sequence", 8).permanent);
}

}  // namespace
}  // namespace outbox
