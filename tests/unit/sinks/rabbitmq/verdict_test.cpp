#include "sinks/rabbitmq/verdict.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

struct Case {
    std::uint16_t code;
    const char* text;
    Fate fate;
    bool permanent = false;
};

// An answer about the server's own memory or disk is not the event's fault.
TEST(RabbitmqVerdict, TellsAnOutageFromARefusal) {
    constexpr Case cases[] = {
        {506, "RESOURCE_ERROR - no disk space left", Fate::throttled},
        {404, "NOT_FOUND - no exchange 'a' in vhost '/'", Fate::unavailable},
        {403, "ACCESS_REFUSED - access to exchange 'a' in vhost '/' refused for user 'u'",
         Fate::unavailable},
        // These are about the message.
        {406, "PRECONDITION_FAILED - message size 20 is larger than max size 10", Fate::refused,
         true},
        // Nobody knows which message they are about, if any.
        {311, "CONTENT_TOO_LARGE", Fate::failed},
        {541, "INTERNAL_ERROR", Fate::failed},
        {406, "PRECONDITION_FAILED - something new", Fate::failed},
    };
    for (const Case& expected : cases) {
        const EventOutcome outcome = verdict_on_close(expected.code, expected.text, false).outcome;
        EXPECT_EQ(outcome.fate, expected.fate) << expected.text;
        EXPECT_EQ(outcome.permanent, expected.permanent) << expected.text;
    }
}

TEST(RabbitmqVerdict, AQueueThatIsFullThrottlesItsLane) {
    EXPECT_EQ(verdict_on_nack("", "q", true).fate, Fate::throttled);
    EXPECT_EQ(verdict_on_nack("e", "k", false).fate, Fate::failed) << "any of its queues";
}

}  // namespace
}  // namespace outbox
