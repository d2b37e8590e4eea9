#include "sinks/mqtt/reasons.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

struct Case {
    std::uint8_t code;
    Fate on_publish;
    Fate on_connect;
    Fate on_disconnect;
};

// An answer about the broker's own memory, quotas or maintenance is not the event's fault.
TEST(MqttReasons, TellAnOutageFromARefusal) {
    constexpr Case cases[] = {
        // Server unavailable, server busy, shutting down.
        {0x88, Fate::unavailable, Fate::unavailable, Fate::unavailable},
        {0x89, Fate::throttled, Fate::unavailable, Fate::unavailable},
        {0x8b, Fate::unavailable, Fate::unavailable, Fate::unavailable},
        // Message rate too high, quota exceeded.
        {0x96, Fate::throttled, Fate::unavailable, Fate::throttled},
        {0x97, Fate::throttled, Fate::unavailable, Fate::throttled},
        // Use another server, server moved.
        {0x9c, Fate::failed, Fate::unavailable, Fate::unavailable},
        {0x9d, Fate::failed, Fate::unavailable, Fate::unavailable},
        // Not authorized: for the topic, or at all.
        {0x87, Fate::unavailable, Fate::unavailable, Fate::unavailable},
        // Topic name invalid, packet too large, payload format invalid: about the message.
        {0x90, Fate::refused, Fate::unavailable, Fate::failed},
        {0x95, Fate::refused, Fate::unavailable, Fate::failed},
        {0x99, Fate::refused, Fate::unavailable, Fate::failed},
    };
    for (const Case& expected : cases) {
        SCOPED_TRACE(describe_reason(expected.code, ""));
        EXPECT_EQ(verdict_on_publish(expected.code, false, false).fate, expected.on_publish);
        EXPECT_EQ(verdict_on_connect(expected.code).fate, expected.on_connect);
        EXPECT_EQ(verdict_on_disconnect(expected.code).fate, expected.on_disconnect);
    }
}

}  // namespace
}  // namespace outbox
