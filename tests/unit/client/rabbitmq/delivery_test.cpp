// Properties of messages, as senders and hostile servers encode them. What our sink writes is tested with
// a real server.
#include "rabbitmq/delivery.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/sinks/rabbitmq/scripted_broker.hpp"

namespace inbox::rabbitmq {
namespace {

using outbox::be;
using outbox::long_string;
using outbox::short_string;
using testing::Contains;
using testing::IsEmpty;
using testing::Pair;

const Time now{std::chrono::seconds(2'000'000'000)};

std::string text_header(const std::string& name, const std::string& value) {
    return short_string(name) + 'S' + long_string(value);
}

class RabbitmqDelivery : public testing::Test {
  protected:
    // Returns false if the properties cannot be decoded.
    bool take(const std::string& properties) {
        outbox::AmqpDecoder decoder;
        const std::string payload = be(AMQP_BASIC_CLASS, 2) + be(0, 2) + be(0, 8) + properties;
        std::uint64_t size = 0;
        const auto* decoded = decoder.decode_properties({AMQP_FRAME_HEADER, 1, payload}, size);
        if (decoded == nullptr)
            return false;
        take_properties(envelope_, *decoded);
        return true;
    }
    bool take_headers(const std::string& headers) {
        return take(be(AMQP_BASIC_HEADERS_FLAG, 2) + long_string(headers));
    }
    Delivery made(const std::string& body = "{}", bool counted_ids_are_unique = false) {
        return delivery_from({envelope_, body}, "rabbitmq:///q", "unnamed", now,
                             counted_ids_are_unique);
    }

    Envelope envelope_{.routing_key = "video.events"};
};

TEST_F(RabbitmqDelivery, AMessageWithoutProperties) {
    ASSERT_TRUE(take(be(0, 2)));
    const Delivery delivery = made();
    EXPECT_EQ(delivery.message_id, "unnamed");
    EXPECT_EQ(delivery.event.topic, "video.events");
    EXPECT_EQ(delivery.published_at, now);
    EXPECT_THAT(delivery.event.headers, IsEmpty());
    EXPECT_EQ(delivery.size, 2u);
}

TEST_F(RabbitmqDelivery, KindsOfHeaders) {
    const std::string table = short_string("t") + 'F' + long_string(text_header("a", "b"));
    const std::string array = short_string("array") + 'A' + long_string("");
    ASSERT_TRUE(take_headers(text_header("text", "x") + short_string("yes") + 't' + be(1, 1) +
                             short_string("small") + 'b' + be(0xff, 1) + short_string("big") + 'l' +
                             be(1'000'000'000'000, 8) + short_string("huge") + 'L' +
                             be(~std::uint64_t(0), 8) + short_string("none") + 'V' + table +
                             array));
    const std::map<std::string, std::string> expected{
        {"text", "x"}, {"yes", "true"}, {"small", "-1"}, {"big", "1000000000000"}};
    std::map<std::string, std::string> found = made().event.headers;
    found.erase("huge");
    EXPECT_EQ(found, expected);
}

TEST_F(RabbitmqDelivery, HeadersOfTheBrokerAreNotThoseOfTheEvent) {
    ASSERT_TRUE(take_headers(short_string("x-stream-offset") + 'l' + be(42, 8) +
                             short_string("x-delivery-count") + 'l' + be(3, 8) +
                             short_string("x-acquired-count") + 'l' + be(4, 8)));
    EXPECT_EQ(envelope_.offset, 42);
    EXPECT_EQ(envelope_.failed_deliveries, 3);
    EXPECT_THAT(made().event.headers, IsEmpty());
    EXPECT_EQ(made().message_id, "42");
}

TEST_F(RabbitmqDelivery, AnOffsetHasAnotherOneBehindIt) {
    ASSERT_TRUE(take_headers(short_string("x-stream-offset") + 'l' + be(INT64_MAX, 8)));
    EXPECT_EQ(envelope_.offset, std::nullopt);
}

TEST_F(RabbitmqDelivery, TimesOfSendersAreNotLaterThanNow) {
    const auto stamped = [&](std::uint64_t seconds) {
        envelope_ = {};
        EXPECT_TRUE(take(be(AMQP_BASIC_TIMESTAMP_FLAG, 2) + be(seconds, 8)));
        return made().published_at;
    };
    EXPECT_EQ(stamped(1'000'000'000), Time(std::chrono::seconds(1'000'000'000)));
    EXPECT_EQ(stamped(3'000'000'000), now);
    EXPECT_EQ(stamped(~std::uint64_t(0)), now);
}

TEST_F(RabbitmqDelivery, TheTimeOfTheBrokerTakesPrecedence) {
    ASSERT_TRUE(take_headers(short_string("timestamp_in_ms") + 'l' + be(1'000'000'000'500, 8)));
    EXPECT_EQ(made().published_at, Time(std::chrono::milliseconds(1'000'000'000'500)));
}

TEST_F(RabbitmqDelivery, NumbersWithoutAnApplicationAreNoIdsAlone) {
    const auto id = [&](const std::string& body, bool unique = false) {
        return made(body, unique).event.id;
    };
    envelope_.message_id = "1";
    envelope_.attributes = {{"ordering_key", "a"}, {"h", "x"}};
    const std::string first = id("x");
    EXPECT_NE(first, id("y"));
    EXPECT_EQ(id("x", true), id("y", true));
    envelope_.attributes["x-first-death-queue"] = "q";  // it has been to another queue
    EXPECT_EQ(id("x"), first);
    envelope_.attributes["h"] = "y";
    EXPECT_NE(id("x"), first);
    envelope_.attributes["h"] = "x";
    envelope_.attributes["ordering_key"] = "b";
    EXPECT_NE(id("x"), first);
    envelope_.attributes["ordering_key"] = "a";
    envelope_.stamp = now;
    EXPECT_NE(id("x"), first);
    envelope_.app_id = "shop";
    EXPECT_EQ(id("x"), id("y"));
    envelope_.app_id.clear();
    envelope_.message_id = "order-1";
    EXPECT_EQ(id("x"), id("y"));
}

TEST_F(RabbitmqDelivery, BytesThatAreNotText) {
    ASSERT_TRUE(take_headers(text_header("bad\xff", std::string("\0\xfe", 2)) +
                             text_header("ordering_key", "\xff")));
    const Delivery delivery = made();
    EXPECT_THAT(delivery.event.headers, Contains(Pair("bad\xef\xbf\xbd", testing::_)));
    EXPECT_EQ(delivery.event.ordering_key, "\xef\xbf\xbd");
}

TEST_F(RabbitmqDelivery, MalformedProperties) {
    for (const std::string& properties :
         {std::string(), be(0, 1), be(1, 2), be(AMQP_BASIC_HEADERS_FLAG, 2),
          be(AMQP_BASIC_HEADERS_FLAG, 2) + be(1000, 4) + "x",
          be(AMQP_BASIC_HEADERS_FLAG, 2) + long_string(short_string("a") + "?"),
          be(AMQP_BASIC_MESSAGE_ID_FLAG, 2) + be(9, 1) + "x",
          be(AMQP_BASIC_TIMESTAMP_FLAG, 2) + be(1, 4)})
        EXPECT_FALSE(take(properties));
}

}  // namespace
}  // namespace inbox::rabbitmq
