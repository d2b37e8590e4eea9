#include "sinks/redis/stream_id.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace outbox {
namespace {

constexpr std::uint64_t highest = UINT64_MAX;

TEST(StreamId, IsReadAndWritten) {
    EXPECT_EQ(StreamId::parse("12-3"), (StreamId{12, 3}));
    EXPECT_EQ(StreamId::parse("18446744073709551615-18446744073709551615"),
              (StreamId{highest, highest}));
    EXPECT_EQ((StreamId{12, 3}.text()), "12-3");
    EXPECT_EQ((StreamId{highest, highest}.text()), "18446744073709551615-18446744073709551615");
    for (const char* text : {"", "-", "1", "1-", "-1", "1-2-3", "a-1", "1-a", " 1-2", "+1-2",
                             "18446744073709551616-0"})
        EXPECT_FALSE(StreamId::parse(text)) << text;
}

TEST(StreamId, FollowsFromThePosition) {
    EXPECT_EQ(id_for(7, {0, 0}), (StreamId{7, 0}));
    EXPECT_EQ(id_for(7, {6, 5}), (StreamId{7, 0}));
    EXPECT_EQ(id_for(7, {7, 0}), (StreamId{7, 7})) << "an event that comes late";
    EXPECT_EQ(id_for(7, {9, 0}), (StreamId{9, 7}));
    EXPECT_EQ(id_for(7, {9, 7}), (StreamId{9, 8})) << "even that is too low";
    EXPECT_EQ(id_for(7, {1'700'000'000'000, 3}), (StreamId{1'700'000'000'000, 7}));
    EXPECT_EQ(id_for(7, {9, highest}), (StreamId{10, 0}));
    EXPECT_EQ(id_for(7, {highest, highest}), std::nullopt);
}

TEST(StreamId, AlwaysRises) {
    StreamId top{};
    for (const std::int64_t position : {5, 3, 4, 9, 1, 1, 2, 8, 10, 10, 7}) {
        const std::optional<StreamId> id = id_for(position, top);
        ASSERT_TRUE(id);
        EXPECT_GT(*id, top);
        top = *id;
    }
}

TEST(StreamId, HasNeighbours) {
    EXPECT_EQ((StreamId{5, 0}.next()), (StreamId{5, 1}));
    EXPECT_EQ((StreamId{5, 1}.previous()), (StreamId{5, 0}));
    EXPECT_EQ((StreamId{5, 0}.previous()), (StreamId{4, highest}));
    EXPECT_EQ((StreamId{0, 0}.previous()), std::nullopt);
    EXPECT_EQ((StreamId{5, highest}.next()), (StreamId{6, 0}));
    EXPECT_TRUE(is_of_clock(1'100'000'000'000));
    EXPECT_FALSE(is_of_clock(1'000'000'000'000));
}

RespValue value_of(std::string bytes) {
    RespReader reader;
    std::string_view input = bytes;
    EXPECT_EQ(reader.read(input), RespReader::State::complete);
    return std::move(reader.value());
}

TEST(StreamId, OfAStreamIsInTheAnswer) {
    const auto state = StreamState::parse(
        value_of("*4\r\n$17\r\nlast-generated-id\r\n$3\r\n9-1\r\n$11\r\nfirst-entry\r\n"
                 "*2\r\n$3\r\n2-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"));
    ASSERT_TRUE(state);
    EXPECT_EQ(state->top, (StreamId{9, 1}));
    EXPECT_FALSE(state->empty);
    const auto trimmed = StreamState::parse(
        value_of("*4\r\n$17\r\nlast-generated-id\r\n$3\r\n9-1\r\n$11\r\nfirst-entry\r\n*-1\r\n"));
    ASSERT_TRUE(trimmed);
    EXPECT_TRUE(trimmed->empty);
    for (const char* bytes : {"+OK\r\n", "*0\r\n", "*2\r\n$17\r\nlast-generated-id\r\n$1\r\nx\r\n",
                              "*2\r\n$17\r\nlast-generated-id\r\n:5\r\n"})
        EXPECT_FALSE(StreamState::parse(value_of(bytes))) << bytes;
}

TEST(StreamId, AnEntryBeginsWithItsEvent) {
    const auto id_in = [](const std::string& bytes) {
        const RespValue value = value_of(bytes);
        const std::optional<StreamEntry> entry = StreamEntry::parse(value);
        return entry ? std::optional(std::string(entry->event_id)) : std::nullopt;
    };
    EXPECT_EQ(
        id_in("*2\r\n$3\r\n7-0\r\n*4\r\n$8\r\nevent_id\r\n$2\r\nid\r\n$1\r\na\r\n$1\r\nb\r\n"),
        "id");
    EXPECT_EQ(id_in("*2\r\n$3\r\n7-0\r\n*2\r\n$5\r\nce_id\r\n$2\r\nid\r\n"), "id");
    EXPECT_EQ(id_in("*2\r\n$3\r\n7-0\r\n*2\r\n$5\r\nother\r\n$2\r\nid\r\n"), "");
    EXPECT_EQ(id_in("*2\r\n$3\r\n7-0\r\n*-1\r\n"), "");
    for (const char* bytes : {"*0\r\n", "*-1\r\n", "+OK\r\n", "*1\r\n:1\r\n", "*2\r\n:1\r\n:2\r\n"})
        EXPECT_EQ(id_in(bytes), std::nullopt) << bytes;
}

}  // namespace
}  // namespace outbox
