#include "sinks/nats/subject.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

std::string subject(std::string_view text, const Event& event) {
    const TextTemplate parsed = TextTemplate::parse(text, TextTemplate::Kind::route).value();
    std::string out;
    append_subject(out, parsed, event, "shop");
    return out;
}

TEST(NatsSubject, ValuesStayInTheirPlace) {
    Event event;
    event.topic = "a.b c";
    event.aggregate_id = "x.y*>%\t\x7f\r\nPUB";
    event.ordering_key = "ключ";
    EXPECT_EQ(subject("{topic}", event), "a.b%20c");
    EXPECT_EQ(subject("o.{aggregate_id}", event), "o.x%2Ey%2A%3E%25%09%7F%0D%0APUB");
    EXPECT_EQ(subject("{database}.{ordering_key}", event), "shop.ключ");
}

TEST(NatsSubject, NotEveryTextIsOne) {
    for (const char* good : {"a", "a.b", "a.$b", "ключ.x", "_INBOXES.a"})
        EXPECT_FALSE(invalid_subject(good, false)) << good;
    for (const char* bad :
         {"", ".", ".a", "a.", "a..b", "$JS.API.INFO", "$SYS.x", "$KV.b.k", "_INBOX.x"})
        EXPECT_TRUE(invalid_subject(bad, false)) << bad;
    EXPECT_FALSE(invalid_subject("$KV.b.k", true));
    EXPECT_TRUE(invalid_subject("$KV.b.", true));
    EXPECT_FALSE(invalid_subject(std::string(max_subject, 'x'), false));
    EXPECT_TRUE(invalid_subject(std::string(max_subject + 1, 'x'), false));
}

TEST(NatsSubject, UnknownPartsBecomeWildcards) {
    EXPECT_EQ(subject_pattern("a.b"), "a.b");
    EXPECT_EQ(subject_pattern("a..b."), "a.*.b.*");
    EXPECT_EQ(subject_pattern(""), "*");
    EXPECT_EQ(subject_pattern("a b.>"), "a%20b.%3E");
}

}  // namespace
}  // namespace outbox
