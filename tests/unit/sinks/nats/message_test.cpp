// Events as messages of NATS.
#include "sinks/nats/message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/sample_event.hpp"

namespace outbox {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* id = "00112233-4455-6677-8899-aabbccddeeff";

std::string encoded(const Event& event, EventFormat format = EventFormat::attributes,
                    const NatsEncoder::Demands& demands = {}) {
    NatsEncoder encoder(format, "shop");
    encoder.encode(event, demands);
    EXPECT_LE(encoder.size(), NatsEncoder::size_of(event) + 1000);
    std::string out;
    encoder.append(out, "s", "r");
    const std::string first = "HPUB s r " + std::to_string(encoder.header_size()) + ' ' +
                              std::to_string(encoder.size()) + "\r\n";
    EXPECT_EQ(out.substr(0, first.size()), first);
    EXPECT_EQ(out.size(), first.size() + encoder.size() + 2);
    return out.substr(first.size());
}

TEST(NatsMessage, HasTheAttributesUnderTheirNames) {
    SampleEvent sample;
    sample.add("tenant", "t1");
    EXPECT_EQ(encoded(sample.event), std::string("NATS/1.0\r\nNats-Msg-Id: ") + id +
                                         "\r\nevent_id: " + id +
                                         "\r\nevent_type: VideoUpdated\r\naggregate_type: video\r\n"
                                         "aggregate_id: v1\r\nschema_version: 1\r\n"
                                         "occurred_at: 2023-11-14T22:13:20.123456Z\r\n"
                                         "content_type: application/json\r\ntenant: t1\r\n"
                                         "ordering_key: v1\r\n\r\n{\"title\": \"Cats\"}\r\n");
}

TEST(NatsMessage, HeadersStayInTheirLine) {
    SampleEvent sample;
    sample.event.ordering_key = "";
    sample.event.aggregate_id = "a\r\nNats-Rollup: all";
    sample.add("x:y z%", " Grüße ");
    sample.add("nats-rollup", "all");
    sample.add("NATS-Expected-Stream", "S");
    sample.add("ordering_key", "k");
    sample.add("nothing", "", Header::Kind::null);
    const std::string text = encoded(sample.event);
    EXPECT_THAT(text, HasSubstr("aggregate_id: a%0D%0ANats-Rollup: all\r\n"));
    EXPECT_THAT(text, HasSubstr("x%3Ay%20z%25: %20Gr%C3%BC%C3%9Fe%20\r\n"));
    EXPECT_THAT(text, Not(HasSubstr("nats-rollup")));
    EXPECT_THAT(text, Not(HasSubstr("Expected")));
    EXPECT_THAT(text, Not(HasSubstr("ordering_key")));
    EXPECT_THAT(text, Not(HasSubstr("nothing")));
}

TEST(NatsMessage, DemandsAreHeaders) {
    const SampleEvent sample;
    const std::string text =
        encoded(sample.event, EventFormat::attributes, {.stream = "S", .last_sequence = "7"});
    EXPECT_THAT(text, HasSubstr("\r\nNats-Expected-Stream: S\r\n"));
    EXPECT_THAT(text, HasSubstr("\r\nNats-Expected-Last-Subject-Sequence: 7\r\n"));
}

TEST(NatsMessage, IsACloudEventInBinaryMode) {
    SampleEvent sample;
    sample.event.event_type = "a \"b\"";
    sample.add("traceparent", "00-1-2-01");
    sample.add("Nats-TTL", "1s");
    sample.add("X-Own", "a b");
    const std::string text = encoded(sample.event, EventFormat::binary);
    EXPECT_THAT(text, HasSubstr(std::string("\r\nce-id: ") + id));
    EXPECT_THAT(text, HasSubstr("\r\nce-type: a%20%22b%22\r\n"));
    EXPECT_THAT(text, HasSubstr("\r\nce-datacontenttype: application/json\r\n"));
    EXPECT_THAT(text, HasSubstr("\r\nce-traceparent: 00-1-2-01\r\ntraceparent: 00-1-2-01\r\n"));
    EXPECT_THAT(text, HasSubstr("\r\nX-Own: a b\r\n"));
    EXPECT_THAT(text, Not(HasSubstr("TTL")));
    EXPECT_THAT(text, HasSubstr("\r\n\r\n{\"title\": \"Cats\"}\r\n"));
}

TEST(NatsMessage, IsADocumentInStructuredMode) {
    SampleEvent sample;
    sample.add("X-Own", "a b");
    const std::string text = encoded(sample.event, EventFormat::structured);
    EXPECT_THAT(text,
                HasSubstr("\r\nContent-Type: application/cloudevents+json; charset=UTF-8\r\n"));
    EXPECT_THAT(text, HasSubstr("\r\nX-Own: a b\r\n"));
    EXPECT_THAT(text, HasSubstr("\"specversion\""));
}

}  // namespace
}  // namespace outbox
