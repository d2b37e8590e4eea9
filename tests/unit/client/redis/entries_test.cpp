#include "redis/entries.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "sinks/redis/entry.hpp"
#include "unit/sample_event.hpp"

namespace inbox::redis {
namespace {

using outbox::RespReader;
using outbox::RespValue;
using testing::ElementsAre;
using testing::Pair;
using testing::UnorderedElementsAre;

RespValue answer(const std::string& bytes, RespReader::Limits limits = {.fields = 100}) {
    RespReader reader(limits);
    std::string_view input = bytes;
    EXPECT_EQ(reader.read(input), RespReader::State::complete) << bytes;
    return reader.value();
}

std::string text(const std::string& value) {
    return '$' + std::to_string(value.size()) + "\r\n" + value + "\r\n";
}

std::string entry(const std::string& id, const std::vector<std::string>& fields) {
    std::string bytes = "*2\r\n" + text(id) + '*' + std::to_string(fields.size()) + "\r\n";
    for (const std::string& field : fields)
        bytes += text(field);
    return bytes;
}

std::string of_stream(const std::vector<std::string>& entries) {
    std::string bytes = "*1\r\n*2\r\n" + text("s") + '*' + std::to_string(entries.size()) + "\r\n";
    for (const std::string& one : entries)
        bytes += one;
    return bytes;
}

std::vector<std::string> ids(const Entries& entries) {
    std::vector<std::string> found;
    for (const Entry& one : entries.entries)
        found.push_back(one.id.text());
    return found;
}

TEST(RedisEntries, AreRead) {
    const RespValue some =
        answer(of_stream({entry("1-0", {"a", "b"}), "*2\r\n" + text("2-0") + "*-1\r\n"}));
    const std::optional<Entries> read = entries_read(some);
    ASSERT_TRUE(read);
    EXPECT_THAT(ids(*read), ElementsAre("1-0", "2-0"));
    EXPECT_NE(read->entries[0].fields, nullptr);
    EXPECT_EQ(read->entries[1].fields, nullptr) << "it is gone";
    EXPECT_FALSE(read->is_cut || read->entries[0].is_cut || read->entries[1].is_cut);
    EXPECT_TRUE(entries_read(answer("*-1\r\n"))->entries.empty());
}

TEST(RedisEntries, AreTakenOver) {
    const RespValue some = answer("*3\r\n" + text("7-1") + "*2\r\n" + entry("1-0", {}) +
                                  "*-1\r\n*1\r\n" + text("3-0"));
    const std::optional<Entries> claimed = entries_claimed(some);
    ASSERT_TRUE(claimed);
    EXPECT_THAT(ids(*claimed), ElementsAre("1-0"));
    EXPECT_EQ(claimed->next, (outbox::StreamId{7, 1}));
    EXPECT_THAT(claimed->gone, ElementsAre(outbox::StreamId{3, 0}));
    EXPECT_TRUE(entries_claimed(answer("*2\r\n" + text("0-0") + "*0\r\n"))) << "Redis 6.2";
}

// What is dropped of an answer must not be taken for the end of it.
TEST(RedisEntries, OfAnAnswerThatIsTooLarge) {
    const std::string three =
        of_stream({entry("1-0", {"p", "aaaa"}), entry("2-0", {"p", "bbbbbbbb"}),
                   entry("3-0", {"p", "cccc"})});
    const RespValue cut_text = answer(three, {.text = 6, .fields = 100});
    std::optional<Entries> read = entries_read(cut_text);
    ASSERT_TRUE(read);
    EXPECT_FALSE(read->entries[0].is_cut);
    EXPECT_TRUE(read->entries[1].is_cut);
    const RespValue all = answer(three);
    for (std::size_t elements = 3; elements < 20; elements++) {
        const RespValue cut = answer(three, {.elements = elements, .fields = 100});
        read = entries_read(cut);
        ASSERT_TRUE(read) << elements;
        const bool is_whole = read->entries.size() == 3 && !read->entries.back().is_cut;
        EXPECT_EQ(is_whole, elements >= 18) << elements;
        EXPECT_EQ(read->is_cut || (!read->entries.empty() && read->entries.back().is_cut),
                  !is_whole)
            << elements;
    }
    for (std::size_t bytes = 1; bytes < 30; bytes++) {
        const RespValue cut = answer(three, {.fields = 100, .bytes = bytes});
        read = entries_read(cut);
        ASSERT_TRUE(read) << bytes;
        EXPECT_TRUE(read->is_cut || read->entries.empty() || read->entries.back().is_cut ||
                    bytes >= 29)
            << bytes;
    }
}

TEST(RedisEntries, AnswersThatMakeNoSense) {
    for (const std::string bytes :
         {":5\r\n", "+OK\r\n", "$1\r\na\r\n", "*0\r\n", "*1\r\n:1\r\n", "*1\r\n*1\r\n:1\r\n",
          "*1\r\n*2\r\n:1\r\n:1\r\n", "*2\r\n*0\r\n*0\r\n", "*1\r\n*2\r\n$1\r\ns\r\n*1\r\n:1\r\n",
          "*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$1\r\nx\r\n*0\r\n", "*3\r\n:1\r\n*0\r\n*0\r\n",
          "*3\r\n$3\r\n0-0\r\n:1\r\n*0\r\n", "*3\r\n$3\r\n0-0\r\n*0\r\n:1\r\n"}) {
        const RespValue value = answer(bytes);
        EXPECT_FALSE(entries_read(value)) << bytes;
        EXPECT_FALSE(entries_claimed(value)) << bytes;
    }
    EXPECT_FALSE(ids_in(answer("*1\r\n:1\r\n")));
    EXPECT_FALSE(ids_in(answer(":1\r\n")));
}

TEST(RedisEntries, SurviveRandomAnswers) {
    std::mt19937 random(1);
    const std::vector<std::string> parts{"*1\r\n",        "*2\r\n", "*3\r\n",  "*0\r\n", "*-1\r\n",
                                         "$3\r\n1-0\r\n", ":1\r\n", "$-1\r\n", "+a\r\n"};
    for (int round = 0; round < 20'000; round++) {
        std::string bytes;
        for (std::size_t n = random() % 16; n > 0; n--)
            bytes += parts[random() % parts.size()];
        RespReader reader({.text = 4, .elements = 8, .fields = 3});
        std::string_view input = bytes;
        if (reader.read(input) != RespReader::State::complete)
            continue;
        for (const std::optional<Entries>& found :
             {entries_read(reader.value()), entries_claimed(reader.value())})
            for (const Entry& one : found ? found->entries : std::vector<Entry>{})
                if (one.fields != nullptr)
                    delivery_from(one, "redis://s/g", "s");
    }
}

// ---- events ---------------------------------------------------------------------------------------

Delivery delivery(const std::string& bytes) {
    const RespValue value = answer(bytes);
    return delivery_from(entries_read(value)->entries.at(0), "redis://s/g", "s");
}

Delivery of_sink(outbox::EventFormat format) {
    outbox::SampleEvent sample;
    sample.event.ordering_key = "k \xc3\xa4";
    sample.event.version = 7;
    sample.event.has_version = true;
    sample.add("tenant",
               "Gr\xc3\xbc\xc3\x9f"
               "e %");
    sample.add("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    outbox::EntryEncoder encoder(format, "shop");
    encoder.encode(sample.event);
    return delivery("*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$4\r\n42-0\r\n*" +
                    std::to_string(encoder.count()) + "\r\n" + std::string(encoder.arguments()));
}

TEST(RedisDelivery, OfOurSinkInEachFormat) {
    for (const auto format : {outbox::EventFormat::attributes, outbox::EventFormat::binary,
                              outbox::EventFormat::structured}) {
        const Delivery found = of_sink(format);
        const Event& event = found.event;
        EXPECT_EQ(event.id, "00112233-4455-6677-8899-aabbccddeeff");
        EXPECT_EQ(event.type, "VideoUpdated");
        EXPECT_EQ(event.aggregate_type, "video");
        EXPECT_EQ(event.aggregate_id, "v1");
        EXPECT_EQ(event.version, 7);
        EXPECT_EQ(event.ordering_key, "k \xc3\xa4");
        EXPECT_EQ(event.content_type, "application/json");
        EXPECT_EQ(event.payload, R"({"title": "Cats"})");
        EXPECT_EQ(event.headers.at("tenant"),
                  "Gr\xc3\xbc\xc3\x9f"
                  "e %");
        EXPECT_FALSE(event.traceparent().empty());
        for (const char* field : {"ce_id", "ce-id", "ordering_key", "payload", "data"})
            EXPECT_FALSE(event.headers.contains(field)) << field;
        EXPECT_EQ(event.occurred_at.time_since_epoch().count(), 1'700'000'000'123'456);
        EXPECT_EQ(found.published_at, event.occurred_at) << "the id is a position, not a time";
        EXPECT_EQ(found.message_id, "42-0");
    }
}

TEST(RedisDelivery, AnyEntryIsAnEvent) {
    const std::string bytes =
        of_stream({entry("1700000000123-4", {"A", "1", "A", "2", "payload", "x\xff", "odd"})});
    const Delivery first = delivery(bytes);
    EXPECT_EQ(first.event.id, delivery(bytes).event.id);
    EXPECT_THAT(first.event.headers, UnorderedElementsAre(Pair("A", "1")));
    EXPECT_EQ(first.event.payload, "x\xff");
    EXPECT_EQ(first.event.topic, "s");
    EXPECT_EQ(first.published_at.time_since_epoch().count(), 1'700'000'000'123'000);
    EXPECT_EQ(first.event.occurred_at, first.published_at);
    EXPECT_EQ(delivery(of_stream({entry("18446744073709551615-0", {})})).published_at, Time{});
}

}  // namespace
}  // namespace inbox::redis
