#include "sinks/aws/aws_message.hpp"

#include <gmock/gmock.h>

#include "net/json.hpp"
#include "sample_event.hpp"
#include "sinks/cloudevents.hpp"
#include "unit/many.hpp"
#include "unit/mutations.hpp"

namespace outbox {
namespace {

using testing::ElementsAre;

// Returns "name type value" of each attribute.
std::vector<std::string> attributes(const AwsMessage& message) {
    std::vector<std::string> lines;
    for (const AwsMessage::Attribute& a : message)
        lines.push_back(std::string(a.name) + ' ' + std::string(a.type) + ' ' + a.value);
    return lines;
}

std::string value_of(const AwsMessage& message, std::string_view name) {
    for (const AwsMessage::Attribute& a : message)
        if (a.name == name)
            return a.value;
    return "(none)";
}

struct MessageOf : AwsMessage {
    explicit MessageOf(const Event& event, MessageStyle style = {}) {
        style.source_prefix = source_prefix("shop");
        assign(event, style);
        EXPECT_LE(size(), message_size_bound(event, style));
    }
};

TEST(AwsMessage, CarriesAllFieldsOfTheEvent) {
    const Event event = sample_event();
    const MessageOf message(event);
    EXPECT_EQ(message.body(), event.payload);
    EXPECT_THAT(
        attributes(message),
        ElementsAre("event_id String " + std::string(sample_id), "event_type String video.created",
                    "aggregate_type String video", "aggregate_id String v-1", "version Number 3",
                    "schema_version Number 2", "occurred_at String 2027-01-15T08:00:00.123456Z",
                    "content_type String application/json"));
    EXPECT_EQ(message.group_id(), "");
    EXPECT_EQ(message.deduplication_id(), "");
}

TEST(AwsMessage, TraceContextIsAnAttributeIfThereIsRoom) {
    const Header headers[] = {{"traceparent", "00-1-2-01", Header::Kind::string},
                              {"tracestate", "a=1", Header::Kind::string}};
    Event event = sample_event();
    event.headers = headers;
    EXPECT_EQ(value_of(MessageOf(event), "traceparent"), "00-1-2-01");
    EXPECT_EQ(value_of(MessageOf(event), "tracestate"), "(none)");  // the eleventh
    EXPECT_EQ(value_of(MessageOf(event), "headers"),
              R"({"traceparent":"00-1-2-01","tracestate":"a=1"})");
    EXPECT_EQ(value_of(MessageOf(event, {.format = EventFormat::structured}), "tracestate"), "a=1");
    event.payload = std::string_view("\0", 1);
    EXPECT_EQ(value_of(MessageOf(event), "traceparent"), "(none)");
}

TEST(AwsMessage, HasNoMoreThanTenAttributes) {
    const Header headers[] = {{"tenant", "a \"b\"", Header::Kind::string},
                              {"count", "5", Header::Kind::literal},
                              {"nothing", "", Header::Kind::null},
                              {"yes", "true", Header::Kind::literal}};
    Event event = sample_event();
    event.headers = headers;
    event.payload = std::string_view("\0", 1);
    const MessageOf message(event);
    EXPECT_EQ(attributes(message).size(), 10u);
    EXPECT_EQ(value_of(message, "headers"), R"({"tenant":"a \"b\"","count":5,"yes":true})");
    EXPECT_EQ(value_of(message, "encoding"), "base64");
}

TEST(AwsMessage, OmitsMissingFields) {
    const Header headers[] = {{"nothing", "", Header::Kind::null}};
    Event event = sample_event();
    event.headers = headers;
    event.has_version = event.has_payload = false;
    event.payload = "";
    const MessageOf message(event);
    for (const char* name : {"version", "content_type", "headers"})
        EXPECT_EQ(value_of(message, name), "(none)");
    EXPECT_EQ(message.body(), "-");
    EXPECT_EQ(value_of(message, "encoding"), "none");
}

TEST(AwsMessage, MarksAnEmptyPayload) {
    Event event = sample_event();
    event.payload = "";
    const MessageOf message(event);
    EXPECT_EQ(message.body(), "-");
    EXPECT_EQ(value_of(message, "encoding"), "none");
    EXPECT_EQ(value_of(message, "content_type"), "application/json");
}

TEST(AwsMessage, EncodesPayloadsThatAreNotText) {
    for (const std::string_view text :
         {std::string_view("\x01"), std::string_view("a\0b", 3), std::string_view("\x1f"),
          std::string_view("\x80"), std::string_view("\xc3\x28"), std::string_view("\xc0\xaf"),
          std::string_view("\xe0\x80\x80"), std::string_view("\xed\xa0\x80"),
          std::string_view("\xef\xbf\xbe"), std::string_view("\xef\xbf\xbf"),
          std::string_view("\xf4\x90\x80\x80"), std::string_view("\xf5\x80\x80\x80"),
          std::string_view("abc\xe2\x82")}) {
        EXPECT_FALSE(is_message_text(text)) << testing::PrintToString(text);
        Event event = sample_event();
        event.payload = text;
        EXPECT_EQ(value_of(MessageOf(event), "encoding"), "base64");
    }
    for (const char* text : {"", "a", "\t\n\r ", "\x7f", "\u0080", "\ud7ff", "\ue000", "\ufffd",
                             "\U00010000", "\U0001ffff", "\U0010ffff", "Grüße, 日本"})
        EXPECT_TRUE(is_message_text(text)) << text;
    Event event = sample_event();
    event.payload = std::string_view("a\0b", 3);
    EXPECT_EQ(MessageOf(event).body(), "YQBi");
}

TEST(AwsMessage, GroupsByTheOrderingKey) {
    Event event = sample_event();
    const auto group = [&](std::string_view key) {
        event.ordering_key = key;
        const MessageOf message(event, {.fifo = true});
        EXPECT_EQ(message.deduplication_id(), sample_id);
        return message.group_id();
    };
    const std::string longest(128, 'k');
    const std::string too_long(129, 'k');
    EXPECT_EQ(group("v-1"), "v-1");
    EXPECT_EQ(group("!~\"\\/<"), "!~\"\\/<");
    EXPECT_EQ(group(longest), longest);
    EXPECT_EQ(group(""), sample_id);
    EXPECT_EQ(group("a b"), "c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65");
    EXPECT_EQ(group("é").size(), 64u);
    EXPECT_EQ(group(too_long).size(), 64u);
    EXPECT_NE(group("a b"), group("a  b"));
}

TEST(AwsMessage, NamesTheAttributeThatCannotBeSent) {
    Event event = sample_event();
    EXPECT_EQ(MessageOf(event).illegal_attribute(), "");
    event.aggregate_id = "a\uffff";
    EXPECT_EQ(MessageOf(event).illegal_attribute(), "aggregate_id");
}

TEST(AwsMessage, StructuredIsADocument) {
    const Header headers[] = {{"tenant", "a", Header::Kind::string},
                              {"x-request-id", "r", Header::Kind::string}};
    Event event = sample_event();
    event.headers = headers;
    const MessageOf message(event, {.format = EventFormat::structured});
    EXPECT_THAT(attributes(message),
                ElementsAre("content-type String application/cloudevents+json; charset=UTF-8",
                            R"(headers String {"x-request-id":"r"})"));
    const auto document = parse_json(message.body());
    ASSERT_TRUE(document);
    EXPECT_EQ(json_text(*document, "id"), sample_id);
    EXPECT_EQ(json_text(*document, "source"), "/shop/video");
    EXPECT_EQ(json_text(*document, "tenant"), "a");
    EXPECT_EQ((*document)["data"]["n"], 1);
}

TEST(AwsMessage, CanBeUsedAgain) {
    Event event = sample_event();
    AwsMessage message;
    message.assign(event, {.fifo = true});
    event.payload = "";
    event.has_payload = false;
    message.assign(event, {});
    EXPECT_EQ(message.body(), "-");
    EXPECT_EQ(message.group_id(), "");
    EXPECT_EQ(value_of(message, "content_type"), "(none)");
}

// For any event, the size does not exceed the bound, and the message is valid text.
TEST(AwsMessage, ItsSizeIsBounded) {
    Mutations texts({"", "plain", "\"quoted\\\"", "\u1234\uffff", "a b/c%", "tab\there",
                     std::string("\0\x01\xff", 3), std::string(300, '"')},
                    "\"\\/%\xe2\x82\xac \t\x01");
    const auto without_controls = [&](std::string text) {
        std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) < ' '; });
        return text;
    };
    for (std::uint64_t i = 0; i < many(20'000); i++) {
        const std::string type = without_controls(texts.next()),
                          id = without_controls(texts.next());
        const std::string header = without_controls(texts.next()), key = texts.next();
        const std::string payload = texts.next();
        const Header headers[] = {{"x-h", header, Header::Kind::string},
                                  {"h", header, Header::Kind::string}};
        Event event = sample_event();
        event.aggregate_type = event.event_type = type;
        event.aggregate_id = event.topic = id;
        event.headers = headers;
        event.ordering_key = key;
        event.payload = payload;
        event.content_type = i % 2 == 0 ? "application/x-thing" : "text/plain";
        event.has_source_event_id = true;
        for (const EventFormat format : {EventFormat::attributes, EventFormat::structured}) {
            const MessageOf message(event, {.format = format});
            EXPECT_TRUE(is_message_text(message.body())) << testing::PrintToString(payload);
            EXPECT_FALSE(message.body().empty());
        }
    }
}

}  // namespace
}  // namespace outbox
