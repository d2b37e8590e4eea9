#include "core/event.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "unit/event_spec.hpp"

namespace outbox {
namespace {

bool aligned(const Header* header) {
    return reinterpret_cast<std::uintptr_t>(header) % alignof(Header) == 0;
}

TEST(EventBlock, KeepsCopiesOfWhatItIsGiven) {
    EventBlock block;
    std::string key = "video-1", payload = "{\"a\": 1}";
    Event* event = block.append(key.size() + payload.size());
    ASSERT_NE(event, nullptr);
    event->ordering_key = block.copy(key.data(), key.size());
    event->payload = block.copy(payload.data(), payload.size());
    key.assign(key.size(), '#');
    payload.assign(payload.size(), '#');
    EXPECT_EQ(block.events().front().ordering_key, "video-1");
    EXPECT_EQ(block.events().front().payload, "{\"a\": 1}");
}

TEST(EventBlock, ANewEventIsBlank) {
    EventBlock block;
    const Event* event = block.append(1);
    ASSERT_NE(event, nullptr);
    EXPECT_EQ(event->tracked, nullptr);
    EXPECT_FALSE(event->retry);
    EXPECT_TRUE(event->headers.empty());
}

TEST(EventBlock, HeadersAreAlignedBehindTextsOfAnyLength) {
    EventBlock block;
    const std::string text(64, 't');
    for (std::size_t length = 0; length <= 2 * alignof(Header); length++) {
        ASSERT_NE(block.append(length + EventBlock::headers_bytes(2)), nullptr);
        block.copy(text.data(), length);
        Header* headers = block.headers(2);
        EXPECT_TRUE(aligned(headers)) << "behind " << length << " bytes";
        headers[1] = {"name", "value", Header::Kind::literal};
    }
}

TEST(EventBlock, ReservedRoomFitsToTheLastByte) {
    // Odd sizes, so that every header array needs its share of padding. The address sanitizer finds
    // a byte too many. Without it, damaged texts of the neighbours show it.
    EventBlock block;
    const std::string name = "trace", filler(701, 'f');
    std::size_t count = 0;
    while (Event* event =
               block.append(name.size() + EventBlock::headers_bytes(1) + filler.size())) {
        const std::string_view copied = block.copy(name.data(), name.size());
        Header* header = block.headers(1);
        header->name = copied;
        event->headers = {header, 1};
        event->payload = block.copy(filler.data(), filler.size());
        count++;
    }
    EXPECT_GT(count, 300u);
    EXPECT_LT(count, EventBlock::max_events) << "the bytes were to run out, not the events";
    ASSERT_EQ(block.events().size(), count);
    for (const Event& event : block.events()) {
        ASSERT_EQ(event.headers[0].name, name);
        ASSERT_EQ(event.payload, filler);
    }
}

TEST(EventBlock, IsFullAtItsMaximumOfEvents) {
    EventBlock block;
    for (std::size_t i = 0; i < EventBlock::max_events; i++)
        ASSERT_TRUE(append(block, {.position = static_cast<std::int64_t>(i)})) << i;
    EXPECT_EQ(block.append(1), nullptr);
    EXPECT_EQ(block.append(0), nullptr);
    EXPECT_EQ(block.events().size(), EventBlock::max_events);
}

TEST(EventBlock, EventsStayWhereTheyAre) {
    EventBlock block;
    const Event* first = block.append(1);
    for (std::size_t i = 1; i < EventBlock::max_events; i++)
        ASSERT_NE(block.append(1), nullptr);
    EXPECT_EQ(&block.events().front(), first);
    EXPECT_EQ(&block.events().back(), first + EventBlock::max_events - 1);
}

TEST(EventBlock, IsFullWhenItsBytesAreUsedUp) {
    EventBlock block;
    ASSERT_TRUE(
        append(block, {.position = 1, .payload = std::string(EventBlock::usual_bytes, 'a')}));
    EXPECT_EQ(block.append(1), nullptr);
    EXPECT_FALSE(block.empty());
    EXPECT_NE(block.append(0), nullptr) << "nothing still fits";
}

TEST(EventBlock, GrowsForItsFirstEventOnly) {
    const std::string huge(3 * EventBlock::usual_bytes, 'h');
    EventBlock block;
    ASSERT_TRUE(append(block, {.position = 1, .payload = huge}));
    EXPECT_GE(block.bytes(), huge.size());
    EXPECT_EQ(block.events().front().payload, huge);

    EventBlock other;
    ASSERT_TRUE(append(other, {.position = 1}));
    EXPECT_FALSE(append(other, {.position = 2, .payload = huge}));
    EXPECT_EQ(other.events().size(), 1u);
    EXPECT_EQ(other.bytes(), usual_block_bytes());
}

TEST(EventBlock, CountsAllOfItsMemory) {
    EventBlock block;
    ASSERT_TRUE(append(block, {.position = 1}));
    EXPECT_GE(block.bytes(), EventBlock::usual_bytes + EventBlock::max_events * sizeof(Event));
}

TEST(EventBlock, SaysThatMemoryRanOut) {
    EventBlock block;
    EXPECT_EQ(block.append(PTRDIFF_MAX), nullptr);
    EXPECT_TRUE(block.empty());
    EXPECT_TRUE(append(block, {.position = 1})) << "a smaller event still fits";
}

TEST(EventBlock, TakesAnEventWithoutAnyText) {
    EventBlock block;
    Event* event = block.append(0);
    ASSERT_NE(event, nullptr);
    event->payload = block.copy("", 0);
    EXPECT_EQ(event->payload, "");
}

TEST(EventBlock, IsNotFullAfterAnEventWithoutAnyText) {
    EventBlock block;
    ASSERT_NE(block.append(0), nullptr);
    EXPECT_TRUE(append(block, {.position = 2}));
}

TEST(EventBlock, IsLikeNewAfterClear) {
    EventBlock block;
    while (append(block, {.position = 1, .payload = std::string(1'000, 'a')})) {
    }
    block.events().front().retry = true;
    block.clear();

    EXPECT_TRUE(block.empty());
    const Event* reused = block.append(EventBlock::usual_bytes);
    ASSERT_NE(reused, nullptr) << "all of its room is there again";
    EXPECT_FALSE(reused->retry);
}

TEST(EventBlock, KeepsItsRoomWhenClearedButNotThatOfAHugeEvent) {
    EventBlock block;
    ASSERT_TRUE(append(block, {.position = 1}));
    block.clear();
    EXPECT_EQ(block.bytes(), usual_block_bytes());

    ASSERT_TRUE(append(block, {.position = 1, .payload = std::string(1 << 20, 'h')}));
    block.clear();
    EXPECT_LE(block.bytes(), usual_block_bytes());
    EXPECT_TRUE(append(block, {.position = 2}));
    EXPECT_EQ(block.bytes(), usual_block_bytes());
}

}  // namespace
}  // namespace outbox
