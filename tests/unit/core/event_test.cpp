#include "core/event.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
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

// A block with texts of odd sizes and headers, so that headers need padding.
void fill(EventBlock& block) {
    const std::string payload(613, 'p');
    for (std::int64_t i = 1;; i++) {
        const std::string topic(static_cast<std::size_t>(i % 5), 't');
        Event* event =
            block.append(topic.size() + EventBlock::headers_bytes(2) + 8 + payload.size());
        if (event == nullptr)
            return;
        event->position = i;
        event->topic = block.copy(topic.data(), topic.size());
        event->payload = block.copy(payload.data(), payload.size());
        event->tracked = reinterpret_cast<Tracked*>(event);
        if (i % 3 == 0)
            continue;
        Header* headers = block.headers(2);
        headers[0] = {block.copy("name", 4), block.copy("1", 1), Header::Kind::literal};
        headers[1] = {block.copy("old", 3), {}, Header::Kind::null};
        event->headers = {headers, 2};
    }
}

void expect_copy(const Event& copy, const Event& event) {
    EXPECT_EQ(copy.position, event.position);
    EXPECT_EQ(copy.topic, event.topic);
    EXPECT_EQ(copy.payload, event.payload);
    EXPECT_NE(copy.payload.data(), event.payload.data());
    EXPECT_EQ(copy.tracked, nullptr);
    ASSERT_EQ(copy.headers.size(), event.headers.size());
    for (std::size_t i = 0; i < copy.headers.size(); i++) {
        EXPECT_TRUE(aligned(&copy.headers[i]));
        EXPECT_EQ(copy.headers[i].name, event.headers[i].name);
        EXPECT_EQ(copy.headers[i].value, event.headers[i].value);
        EXPECT_EQ(copy.headers[i].kind, event.headers[i].kind);
    }
}

TEST(EventImage, AFullBlockFitsAndComesBackTheSame) {
    EventBlock block, copy;
    fill(block);
    const auto image = std::make_unique<EventImage>();
    ASSERT_TRUE(image->assign(block.events()));
    ASSERT_EQ(image->events().size(), block.events().size());
    for (const Event& event : image->events())
        ASSERT_TRUE(copy.append_copy(event));
    for (std::size_t i = 0; i < block.events().size(); i++)
        expect_copy(copy.events()[i], block.events()[i]);
    EXPECT_FALSE(copy.append_copy(block.events().front())) << "a full block has no room";
}

TEST(EventImage, ALargerEventDoesNotFit) {
    EventBlock block;
    const std::string payload(EventBlock::usual_bytes + 1, 'p');
    Event* event = block.append(payload.size());
    ASSERT_NE(event, nullptr);
    event->payload = block.copy(payload.data(), payload.size());
    const auto image = std::make_unique<EventImage>();
    EXPECT_FALSE(image->assign(block.events()));
    EXPECT_TRUE(image->events().empty());
}

}  // namespace
}  // namespace outbox
