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

// An answer about the server's memory, disk, leader, limits or maintenance is not the event's fault.
// The texts are those of the server (server/errors.json, server/store.go).
TEST(NatsVerdict, TellsAnOutageFromARefusal) {
    struct Case {
        int code, error;
        const char* text;
        Fate fate;
        Scope scope = Scope::lane;
    };
    constexpr Scope none = Scope::destination;
    for (const Case& one :
         {Case{500, 10028, "insufficient memory resources available", Fate::unavailable},
          Case{500, 10047, "insufficient storage resources available", Fate::unavailable},
          Case{503, 10023, "insufficient resources", Fate::unavailable},
          Case{400, 10002, "resource limits exceeded for account", Fate::unavailable},
          Case{400, 10120, "no JetStream default or applicable tiered limit present",
               Fate::unavailable},
          Case{503, 10077, "maximum messages exceeded", Fate::unavailable},
          Case{503, 10077, "maximum bytes exceeded", Fate::unavailable},
          Case{503, 10077, "write 1.blk: no space left on device", Fate::unavailable},
          Case{503, 10077, "store is closed", Fate::unavailable},
          Case{503, 10008, "JetStream system temporarily unavailable", Fate::unavailable},
          Case{500, 10007, "JetStream cluster not assigned to this server", Fate::unavailable},
          Case{500, 10009, "JetStream cluster can not handle request", Fate::unavailable},
          Case{500, 10118, "stream is offline", Fate::unavailable},
          Case{500, 10194, "stream is offline: unsupported", Fate::unavailable},
          Case{404, 10059, "stream not found", Fate::unavailable},
          Case{400, 10060, "expected stream does not match", Fate::unavailable},
          Case{400, 10055, "stream mirror configuration can not be updated", Fate::unavailable},
          Case{400, 10109, "invalid operation on sealed stream", Fate::unavailable},
          Case{503, 10163, "expected last sequence per subject temporarily unavailable",
               Fate::unavailable},
          Case{503, 10035, "account not found", Fate::unavailable, Scope::destination},
          Case{503, 10039, "JetStream not enabled for account", Fate::unavailable,
               Scope::destination},
          Case{503, 10076, "JetStream not enabled", Fate::unavailable, Scope::destination},
          // Too much at a time.
          Case{429, 10167, "too many requests", Fate::throttled},
          Case{429, 10210, "atomic publish too many inflight", Fate::throttled},
          Case{429, 10211, "batch publish too many inflight", Fate::throttled},
          // Nobody knows.
          Case{409, 10158, "duplicate message id is in process", Fate::failed},
          // These are about the message.
          Case{400, 10054, "message size exceeds maximum allowed", Fate::refused, none},
          Case{503, 10077, "message size exceeds maximum allowed", Fate::refused, none},
          Case{503, 10077, "maximum messages per subject exceeded", Fate::refused, none},
          Case{400, 10097, "header size exceeds maximum allowed of 64k", Fate::refused, none},
          Case{400, 10165, "invalid per-message TTL", Fate::refused, none},
          Case{400, 10166, "per-message TTL is disabled", Fate::refused, none},
          Case{400, 10071, "wrong last sequence: 3", Fate::refused, none}}) {
        const EventOutcome outcome = of_error(one.code, one.error, one.text);
        EXPECT_EQ(outcome.fate, one.fate) << one.error << ' ' << one.text;
        EXPECT_EQ(outcome.scope, one.scope) << one.error << ' ' << one.text;
    }
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
