// Records as events. Those of our own sink are made by it.
#include "kafka/record.hpp"

#include <gmock/gmock.h>

#include "sinks/kafka/record.hpp"
#include "unit/sample_event.hpp"

namespace inbox::kafka {
namespace {

using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;
using Headers = std::map<std::string, std::string>;

constexpr const char* id = "00112233-4455-6677-8899-aabbccddeeff";

Record record(Headers headers = {}, std::optional<std::string> value = "{}") {
    return {.topic = "orders",
            .partition = 3,
            .offset = 17,
            .key = "k",
            .value = std::move(value),
            .headers = std::move(headers),
            .timestamp = 1'700'000'000'123};
}

Event event_of(Record record) {
    return delivery_from(std::move(record), "kafka://g").event;
}

Record encoded(outbox::EventFormat format, const outbox::Event& event) {
    outbox::RecordEncoder encoder({.format = format}, "shop");
    Record made = record({}, std::nullopt);
    const auto value = encoder.encode(event, [&](std::string_view name, std::string_view text) {
        made.headers.emplace(name, text);
    });
    if (value)
        made.value.emplace(*value);
    made.key = std::string(event.ordering_key);
    return made;
}

TEST(KafkaRecord, OfOurSinkInEachFormat) {
    outbox::SampleEvent sample;
    sample.event.version = 7;
    sample.event.has_version = true;
    sample.add("tenant", "t1");
    for (const auto format : {outbox::EventFormat::attributes, outbox::EventFormat::binary,
                              outbox::EventFormat::structured}) {
        const Event event = event_of(encoded(format, sample.event));
        EXPECT_EQ(event.id, id);
        EXPECT_EQ(event.type, "VideoUpdated");
        EXPECT_EQ(event.aggregate_type, "video");
        EXPECT_EQ(event.aggregate_id, "v1");
        EXPECT_EQ(event.ordering_key, "v1");
        EXPECT_EQ(event.version, 7);
        EXPECT_EQ(event.payload, R"({"title": "Cats"})");
        EXPECT_EQ(event.content_type, "application/json");
        EXPECT_EQ(event.headers.at("tenant"), "t1");
        EXPECT_EQ(event.occurred_at.time_since_epoch().count() / 1000, 1'700'000'000'123);
    }
}

TEST(KafkaRecord, TombstonesOfOurSinkHaveNoPayload) {
    outbox::SampleEvent sample;
    sample.event.has_payload = false;
    sample.event.payload = {};
    for (const auto format : {outbox::EventFormat::attributes, outbox::EventFormat::binary,
                              outbox::EventFormat::structured}) {
        const Event event = event_of(encoded(format, sample.event));
        EXPECT_EQ(event.id, id);
        EXPECT_EQ(event.payload, std::nullopt);
    }
}

TEST(KafkaRecord, EmptyValuesAreEmptyPayloads) {
    EXPECT_EQ(event_of(record({}, "")).payload, "");
    EXPECT_EQ(event_of(record({}, std::nullopt)).payload, std::nullopt);
    EXPECT_EQ(event_of(record({{"content_type", "text/plain"}}, std::nullopt)).payload,
              std::nullopt);
}

TEST(KafkaRecord, OfDebezium) {
    const Event event = event_of(record({{"id", id},
                                         {"eventType", "OrderPlaced"},
                                         {"aggregateType", "order"},
                                         {"headers", R"({"tenant": "t1"})"},
                                         {"source_event_id", id},
                                         {"x", "y"}}));
    EXPECT_EQ(event.id, id);
    EXPECT_EQ(event.type, "OrderPlaced");
    EXPECT_EQ(event.aggregate_type, "order");
    EXPECT_EQ(event.aggregate_id, "k");
    EXPECT_EQ(event.source_event_id, id);
    EXPECT_THAT(event.headers, UnorderedElementsAre(Pair("tenant", "t1"), Pair("x", "y")));
}

TEST(KafkaRecord, AHeaderIdThatIsNotAUuidIsNotTheEventId) {
    const Event event = event_of(record({{"id", "17"}, {"headers", "{}"}}));
    EXPECT_THAT(event.headers, UnorderedElementsAre(Pair("id", "17"), Pair("headers", "{}")));
    EXPECT_NE(event.id, event_of([] {
                            Record next = record({{"id", "17"}});
                            next.offset++;
                            return next;
                        }())
                            .id);
}

TEST(KafkaRecord, AnythingHasAnIdThatStaysTheSame) {
    const Delivery delivery = delivery_from(record(), "kafka://g");
    EXPECT_EQ(delivery.event.id, delivery_from(record(), "kafka://another").event.id);
    EXPECT_EQ(delivery.message_id, "orders/3/17");
    EXPECT_EQ(delivery.event.topic, "orders");
    EXPECT_EQ(delivery.published_at.time_since_epoch().count(), 1'700'000'000'123'000);
    Record recreated = record();  // of a topic with the same name
    recreated.timestamp++;
    EXPECT_NE(delivery.event.id, event_of(recreated).id);
    Record another = record();
    another.partition++;
    EXPECT_NE(delivery.event.id, event_of(another).id);
}

TEST(KafkaRecord, BytesThatAreNoTextDoNotGetThrough) {
    Record bad = record({{"a\xff", "b\0c"}});
    bad.key = "\xfe\xff";
    bad.timestamp = -1;
    const Delivery delivery = delivery_from(bad, "kafka://g");
    EXPECT_EQ(delivery.event.ordering_key, "\xef\xbf\xbd\xef\xbf\xbd");
    EXPECT_EQ(delivery.published_at, Time{});
}

}  // namespace
}  // namespace inbox::kafka
