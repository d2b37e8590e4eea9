#include "nats/delivery.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sinks/nats/message.hpp"
#include "unit/sample_event.hpp"

namespace inbox::nats {
namespace {

using testing::Pair;
using testing::UnorderedElementsAre;

TEST(NatsPlace, IsReadFromTheSubjectOfAcknowledgements) {
    for (const char* subject : {"$JS.ACK.S.C.2.7.5.1700000000123456789.0",
                                "$JS.ACK.domain.account.S.C.2.7.5.1700000000123456789.0",
                                "$JS.ACK._.account.S.C.2.7.5.1700000000123456789.0.random"}) {
        const std::optional<Place> place = place_of(subject);
        ASSERT_TRUE(place) << subject;
        EXPECT_EQ(place->delivered, 2u);
        EXPECT_EQ(place->sequence, 7u);
        EXPECT_EQ(place->of_consumer, 5u);
        EXPECT_EQ(place->stored_at, 1'700'000'000'123'456'789);
    }
    for (const char* other :
         {"", "_INBOX.x.1", "$JS.ACK.", "$JS.ACK.S.C.2.7.5", "$JS.ACK.S.C.x.7.5.1.0",
          "$JS.ACK.S.C.2.0.5.1.0", "$JS.ACK.S.C.2.7.5.99999999999999999999.0"})
        EXPECT_FALSE(place_of(other)) << other;
    EXPECT_FALSE(place_of("$JS.ACK." + std::string(1024, 'S') + ".C.2.7.5.1.0"));
}

Event read(outbox::EventFormat format) {
    outbox::SampleEvent sample;
    sample.event.version = 7;
    sample.event.has_version = true;
    sample.event.ordering_key = "k \xc3\xa4";
    sample.add("tenant",
               "Gr\xc3\xbc\xc3\x9f"
               "e %");
    sample.add("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    outbox::NatsEncoder encoder(format, "shop");
    encoder.encode(sample.event, {});
    std::string text;
    encoder.append(text, "video.events", "$JS.ACK.S.C.1.7.5.1700000000123456789.0");
    text.replace(0, 4, "HMSG");
    text.replace(text.find("events "), 7, "events 1 ");
    const outbox::NatsInput input = outbox::read_nats(text, {});
    EXPECT_EQ(input.kind, outbox::NatsInput::Kind::message);
    return delivery_from(input, *place_of(input.reply), "nats://S/C").event;
}

TEST(NatsDelivery, OfOurSinkInEachFormat) {
    for (const auto format : {outbox::EventFormat::attributes, outbox::EventFormat::binary,
                              outbox::EventFormat::structured}) {
        const Event event = read(format);
        EXPECT_EQ(event.id, "00112233-4455-6677-8899-aabbccddeeff");
        EXPECT_EQ(event.topic, "video.events");
        EXPECT_EQ(event.type, "VideoUpdated");
        EXPECT_EQ(event.aggregate_id, "v1");
        EXPECT_EQ(event.version, 7);
        EXPECT_EQ(event.ordering_key, "k \xc3\xa4");
        EXPECT_EQ(event.content_type, "application/json");
        EXPECT_EQ(event.headers.at("tenant"),
                  "Gr\xc3\xbc\xc3\x9f"
                  "e %");
        EXPECT_FALSE(event.traceparent().empty());
        EXPECT_FALSE(event.headers.contains("Nats-Msg-Id"));
    }
}

TEST(NatsDelivery, AnyMessageIsAnEvent) {
    const std::string headers = "NATS/1.0\r\nA: 1\r\nbad\r\n: x\r\nB: 100%\r\n\r\n";
    const outbox::NatsInput input{.kind = outbox::NatsInput::Kind::message,
                                  .subject = "a.b",
                                  .reply = "$JS.ACK.S.C.1.7.5.1700000000123456789.0",
                                  .headers = headers,
                                  .payload = "x"};
    const Delivery first = delivery_from(input, *place_of(input.reply), "nats://S/C");
    EXPECT_EQ(first.event.id, delivery_from(input, *place_of(input.reply), "nats://S/C").event.id);
    EXPECT_THAT(first.event.headers, UnorderedElementsAre(Pair("A", "1"), Pair("B", "100%")));
    EXPECT_EQ(first.event.payload, "x");
    EXPECT_EQ(first.message_id, "7");
    EXPECT_EQ(first.handle, input.reply);
}

}  // namespace
}  // namespace inbox::nats
