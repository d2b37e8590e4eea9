#include "dispatcher.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <thread>

#include "deliveries.hpp"

namespace inbox {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<std::string> names(const std::vector<Item>& items) {
    std::vector<std::string> names;
    for (const Item& item : items)
        names.push_back(item.delivery.message_id);
    return names;
}

std::vector<Item> all(std::vector<Item> items, HandlerResult result) {
    for (Item& item : items)
        item.result = result;
    return items;
}

class DispatcherTest : public testing::Test {
  protected:
    Dispatcher dispatcher{10, 1000};

    void add(std::initializer_list<Delivery> deliveries) { dispatcher.add(deliveries); }
    std::size_t room() { return dispatcher.room(milliseconds{0}); }
};

TEST_F(DispatcherTest, TakesAllOfAKeyTogetherAndInOrder) {
    add({delivery("a", 1), delivery("b", 1), delivery("a", 2), delivery("", 1)});
    EXPECT_THAT(names(dispatcher.take(10)), ElementsAre("a1", "a2", "b1", "1"));
}

TEST_F(DispatcherTest, AKeyIsWithOneWorkerAtATime) {
    add({delivery("a", 1), delivery("a", 2), delivery("b", 1)});
    auto first = dispatcher.take(1);
    EXPECT_THAT(names(first), ElementsAre("a1"));
    EXPECT_THAT(names(dispatcher.take(10)), ElementsAre("b1"));
    add({delivery("a", 3)});
    EXPECT_THAT(message_ids(dispatcher.finish(all(std::move(first), HandlerResult::applied))),
                ElementsAre("a1"));
    EXPECT_THAT(names(dispatcher.take(10)), ElementsAre("a2", "a3"));
}

TEST_F(DispatcherTest, EventsWithoutAKeyAreIndependent) {
    add({delivery("", 1), delivery("", 2)});
    EXPECT_THAT(names(dispatcher.take(1)), ElementsAre("1"));
    EXPECT_THAT(names(dispatcher.take(1)), ElementsAre("2"));
}

TEST_F(DispatcherTest, AFailedEventGoesBackWithAllBehindIt) {
    add({delivery("a", 1), delivery("a", 2), delivery("a", 3), delivery("b", 1)});
    auto items = dispatcher.take(10);
    add({delivery("a", 4)});
    items[0].result = items[3].result = HandlerResult::applied;
    items[1].result = HandlerResult::failed;
    items[2].result = HandlerResult::behind;
    EXPECT_THAT(message_ids(dispatcher.finish(std::move(items))), ElementsAre("a1", "b1"));
    add({delivery("a", 5)});
    EXPECT_THAT(message_ids(dispatcher.take_held(Clock::now())),
                ElementsAre("a2", "a3", "a4", "a5"));
    EXPECT_EQ(dispatcher.messages(), 0u);
    EXPECT_EQ(dispatcher.bytes(), 0u);
    add({delivery("a", 2)});
    EXPECT_THAT(names(dispatcher.take(10)), ElementsAre("a2"));
}

TEST_F(DispatcherTest, AFailedEventIsHeldForItsPause) {
    add({delivery("a", 1)});
    auto items = dispatcher.take(10);
    items[0].result = HandlerResult::failed;
    items[0].pause = milliseconds{60'000};
    dispatcher.finish(std::move(items));
    EXPECT_THAT(dispatcher.take_held(Clock::now()), IsEmpty());
    EXPECT_EQ(dispatcher.messages(), 1u);
    EXPECT_THAT(dispatcher.take_held(Clock::now() + milliseconds{60'001}), SizeIs(1));
}

TEST_F(DispatcherTest, RoomComesBackBelowFourFifths) {
    EXPECT_EQ(room(), 10u);
    for (int i = 0; i < 10; i++)
        add({delivery("", i)});
    EXPECT_EQ(room(), 0u);
    dispatcher.finish(all(dispatcher.take(2), HandlerResult::applied));
    EXPECT_EQ(room(), 0u);
    dispatcher.finish(all(dispatcher.take(1), HandlerResult::duplicate));
    EXPECT_EQ(room(), 3u);
}

TEST_F(DispatcherTest, BytesCountAsWell) {
    add({delivery("", 1, 5000)});
    EXPECT_EQ(room(), 0u);
    dispatcher.finish(all(dispatcher.take(10), HandlerResult::dead));
    EXPECT_EQ(room(), 10u);
}

TEST_F(DispatcherTest, TakeAllWaitsForWorkers) {
    add({delivery("a", 1), delivery("a", 2), delivery("b", 1)});
    auto items = dispatcher.take(1);
    std::vector<Delivery> everything;
    EXPECT_FALSE(dispatcher.take_all(milliseconds{1}, everything));
    dispatcher.finish(all(std::move(items), HandlerResult::applied));
    EXPECT_TRUE(dispatcher.take_all(milliseconds{1}, everything));
    EXPECT_THAT(message_ids(everything), testing::UnorderedElementsAre("a2", "b1"));
    EXPECT_EQ(dispatcher.messages(), 0u);
}

TEST_F(DispatcherTest, StopEndsWaiting) {
    std::thread worker([&] { EXPECT_THAT(dispatcher.take(1), IsEmpty()); });
    dispatcher.stop();
    worker.join();
    EXPECT_EQ(room(), 0u);
}

// The events of a key are handled one after the other, however many workers run.
TEST(DispatcherThreads, KeepTheOrderOfKeys) {
    constexpr int count = 2000;
    Dispatcher dispatcher(100, 1 << 20);
    std::map<std::string, std::atomic<int>> done;
    for (const char key : std::string("abcde"))
        done[std::string(1, key)] = 0;
    std::atomic<int> finished = 0;
    std::vector<std::thread> workers;
    for (int i = 0; i < 4; i++)
        workers.emplace_back([&] {
            for (;;) {
                auto items = dispatcher.take(7);
                if (items.empty())
                    return;
                for (const Item& item : items) {
                    const std::string& key = item.delivery.event.ordering_key;
                    EXPECT_EQ(item.delivery.message_id, key + std::to_string(done[key]++));
                }
                finished += static_cast<int>(
                    dispatcher.finish(all(std::move(items), HandlerResult::applied)).size());
                if (finished == count)
                    dispatcher.stop();
            }
        });
    for (int i = 0; i < count;) {
        std::vector<Delivery> some;
        for (std::size_t room = dispatcher.room(milliseconds{1000}); room > 0 && i < count;
             room--, i++)
            some.push_back(delivery(std::string(1, "abcde"[i % 5]), i / 5));
        dispatcher.add(std::move(some));
    }
    for (std::thread& worker : workers)
        worker.join();
    EXPECT_EQ(finished, count);
}

}  // namespace
}  // namespace inbox
