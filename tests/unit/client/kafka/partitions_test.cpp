// What becomes of records, and the positions that follow.
#include "kafka/partitions.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <random>

namespace inbox::kafka {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

using Why = Partitions::Why;

const Place first{"t", 0}, second{"t", 1};

Time at(int second) {
    return Time(std::chrono::seconds(1'700'000'000 + second));
}

class PartitionsTest : public testing::Test {
  protected:
    // `topic` is part of the ids of events.
    Partitions::Read read_one(const Place& place, std::int64_t offset,
                              const std::string& topic = "") {
        Delivery delivery;
        delivery.message_id = std::to_string(offset);
        delivery.event.id = topic + std::to_string(offset);
        delivery.published_at = at(static_cast<int>(offset % 1'000'000));
        delivery.size = 10;
        return partitions.read(place, offset, std::move(delivery));
    }
    void read(const Place& place, std::initializer_list<int> offsets) {
        for (const int offset : offsets)
            read_one(place, offset);
    }
    std::vector<Delivery> take(std::size_t most = 100) { return partitions.take(most); }
    void ack(const Delivery& delivery) { partitions.ack(std::span(&delivery, 1)); }
    void nack(const std::vector<Delivery>& deliveries) { partitions.nack(deliveries); }
    Partitions::Found find_again(Why why, std::int64_t low, std::int64_t high) {
        return partitions.find_again(first, why, low, high);
    }
    std::vector<std::string> positions(std::initializer_list<const Delivery*> deliveries) {
        return texts(partitions.positions({deliveries.begin(), deliveries.size()}));
    }
    static std::vector<std::string> texts(const std::vector<Position>& positions) {
        std::vector<std::string> texts;
        for (const Position& position : positions)
            texts.push_back(position.subscription + '=' + position.message_id);
        return texts;
    }
    static std::vector<std::string> ids(const std::vector<Delivery>& deliveries) {
        std::vector<std::string> ids;
        for (const Delivery& delivery : deliveries)
            ids.push_back(delivery.message_id);
        return ids;
    }

    Partitions partitions{"s"};
};

TEST_F(PartitionsTest, OnlyAContiguousPrefixIsCommitted) {
    partitions.add(first, {.offset = 10});
    read(first, {10, 11, 14});  // 12 and 13 were compacted away
    const std::vector<Delivery> taken = take();
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, 10);
    ack(taken[1]);
    EXPECT_THAT(partitions.take_uncommitted(), IsEmpty());
    ack(taken[0]);
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, 14);
    ack(taken[2]);
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, 15);
    EXPECT_THAT(partitions.take_uncommitted(), IsEmpty());
    partitions.commit_failed(first);
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, 15);
}

// The next position would be before all others.
TEST_F(PartitionsTest, ARecordOfTheLastOffsetIsNotDelivered) {
    constexpr auto last = std::numeric_limits<std::int64_t>::max();
    partitions.add(first, {.offset = 10});
    EXPECT_EQ(read_one(first, last - 1), Partitions::Read::entered);
    EXPECT_EQ(read_one(first, last), Partitions::Read::ignored);
    ack(take().at(0));
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, last);
}

TEST_F(PartitionsTest, NothingIsCommittedBeforeTheFirstRecordIsKnown) {
    partitions.add(first, {.offset = -1});
    EXPECT_THAT(partitions.take_uncommitted(), IsEmpty());
    EXPECT_THAT(partitions.moved_positions(), IsEmpty());
    read(first, {7});
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, 7);
}

TEST_F(PartitionsTest, WhatIsGivenBackComesFirst) {
    partitions.add(first, {.offset = 0});
    read(first, {0, 1, 2, 3, 4});
    std::vector<Delivery> taken = take(3);
    EXPECT_EQ(partitions.waiting_bytes(), 20u);
    nack({taken[1], taken[2]});
    EXPECT_THAT(ids(take()), ElementsAre("1", "2", "3", "4"));
    EXPECT_EQ(partitions.waiting_bytes(), 0u);
    EXPECT_EQ(partitions.outstanding(), 5u);
}

TEST_F(PartitionsTest, WhatIsSettledTooLateChangesNothing) {
    partitions.add(first, {.offset = 0});
    read(first, {0, 1});
    const std::vector<Delivery> old = take();
    partitions.remove(first);
    partitions.add(first, {.offset = 0});
    read(first, {0, 1});
    ack(old[0]);
    nack({old[1]});
    EXPECT_EQ(partitions.waiting(), 2u);
    EXPECT_EQ(partitions.position_of(first), 0);
    EXPECT_TRUE(partitions.is_recalled(old[0]));
    const std::vector<Delivery> taken = take();
    EXPECT_FALSE(partitions.is_recalled(taken[0]));
    ack(taken[0]);
    ack(taken[0]);
    EXPECT_EQ(partitions.outstanding(), 1u);
}

TEST_F(PartitionsTest, NumbersAreNotUsedAgainByALaterSession) {
    partitions.add(first, {.offset = 0});
    read(first, {0});
    const std::vector<Delivery> old = take();
    Partitions later{"s"};
    later.add(second, {.offset = 0});
    EXPECT_TRUE(later.is_recalled(old[0]));
}

TEST_F(PartitionsTest, ARecalledPartitionWaitsForWhatIsHandedOut) {
    partitions.add(first, {.offset = 0});
    partitions.add(second, {.offset = 0});
    read(first, {0, 1, 2});
    read(second, {0});
    const std::vector<Delivery> taken = take(2);
    partitions.recall(first);
    read(first, {3});
    EXPECT_TRUE(partitions.is_recalled(taken[0]));
    EXPECT_THAT(ids(take()), ElementsAre("0"));  // of the other partition
    nack({taken[1]});
    EXPECT_TRUE(partitions.has_begun(first));
    EXPECT_EQ(partitions.waiting(), 0u);
    ack(taken[0]);
    EXPECT_FALSE(partitions.has_begun(first));
    EXPECT_EQ(partitions.position_of(first), 1);
}

TEST_F(PartitionsTest, ATransactionSavesWhereItLeadsTo) {
    partitions.add(first, {.offset = 0});
    partitions.add(second, {.offset = 5});
    read(first, {0, 1, 2});
    read(second, {5, 6});
    const std::vector<Delivery> taken = take();
    EXPECT_THAT(positions({&taken[0], &taken[1], &taken[3]}), ElementsAre("s/t/0=2", "s/t/1=6"));
    // Nothing of it is committed yet: an earlier record holds it back.
    EXPECT_THAT(positions({&taken[2]}), IsEmpty());
    ack(taken[0]);
    ack(taken[2]);
    EXPECT_THAT(positions({&taken[1]}), ElementsAre("s/t/0=3"));
    // It is rolled back, and runs again.
    EXPECT_THAT(positions({&taken[1]}), ElementsAre("s/t/0=3"));
}

TEST_F(PartitionsTest, APositionThatNoTransactionHasSavedIsSavedSeparately) {
    partitions.add(first, {.offset = 0});
    read(first, {0, 1});
    const std::vector<Delivery> taken = take();
    EXPECT_THAT(positions({&taken[0]}), ElementsAre("s/t/0=1"));
    EXPECT_THAT(positions({&taken[1]}), IsEmpty());
    ack(taken[1]);
    ack(taken[0]);
    EXPECT_THAT(texts(partitions.moved_positions()), ElementsAre("s/t/0=2"));
    EXPECT_THAT(partitions.moved_positions(), IsEmpty());
}

TEST_F(PartitionsTest, TimesOfPositionsGrow) {
    partitions.add(first, {.offset = 0, .saved_at = at(100)});
    read(first, {0, 1, 200, 201});  // the times of the first two are before the saved one
    const std::vector<Delivery> taken = take();
    ASSERT_THAT(taken, SizeIs(4));
    Time last = at(100);
    for (const Delivery& each : taken) {
        const Delivery* const pointer = &each;
        const std::vector<Position> positions = partitions.positions(std::span(&pointer, 1));
        ASSERT_THAT(positions, SizeIs(1));
        EXPECT_GT(positions[0].published_at, last);
        last = positions[0].published_at;
        ack(each);
    }
    EXPECT_EQ(last, at(201));
}

TEST_F(PartitionsTest, AMovedPartitionBeginsAgain) {
    partitions.add(first, {.offset = 0});
    read(first, {0, 1, 2});
    std::vector<Delivery> taken = take(2);
    ack(taken[0]);
    ack(taken[1]);
    const std::vector<Position> before = partitions.moved_positions();
    partitions.move(first, 1, at(1));
    EXPECT_EQ(partitions.waiting(), 0u);
    const std::vector<Position> after = partitions.moved_positions();
    ASSERT_THAT(texts(after), ElementsAre("s/t/0=1"));
    EXPECT_GT(after[0].published_at, before[0].published_at) << "it would not be saved";
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, 1);
    read(first, {1});
    EXPECT_THAT(ids(take()), ElementsAre("1"));
}

TEST_F(PartitionsTest, MarkersBehindTheLastRecordArePassed) {
    partitions.add(first, {.offset = 0});
    read(first, {0});
    EXPECT_TRUE(partitions.ended(first, 2));
    EXPECT_EQ(partitions.position_of(first), 0);
    ack(take()[0]);
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, 2);
    // Also if nothing was read since it was assigned.
    partitions.add(first, {.offset = 2, .is_committed = true});
    EXPECT_THAT(partitions.take_uncommitted(), IsEmpty());
    EXPECT_TRUE(partitions.ended(first, 5));
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, 5);
    EXPECT_FALSE(partitions.ended(first, 4)) << "the log was cut back";
}

TEST_F(PartitionsTest, APositionHasTheLastRecordBeforeItAsItsMark) {
    partitions.add(first, {.offset = 5});
    read(first, {5, 6, 9});
    const std::vector<Delivery> taken = take();
    EXPECT_EQ(partitions.take_uncommitted().at(0).mark.text(), "");
    const std::vector<const Delivery*> all{&taken[0], &taken[1]};
    EXPECT_EQ(partitions.positions(all).at(0).incarnation, "6 6");
    ack(taken[0]);
    EXPECT_EQ(partitions.take_uncommitted().at(0).mark.text(), "5 5");
    EXPECT_EQ(partitions.moved_positions().at(0).incarnation, "5 5");
    EXPECT_EQ(Mark::parse("5 x y").text(), "5 x y");
    for (const char* other : {"", "5", "x", "-1 x", " 5", "99999999999999999999 x"})
        EXPECT_FALSE(Mark::parse(other)) << other;
}

TEST_F(PartitionsTest, AnotherRecordAtTheMarkIsAnotherTopic) {
    const Begin begin{.offset = 3, .mark = {2, "2"}};
    EXPECT_EQ(begin.first(), 2);
    EXPECT_EQ((Begin{.offset = 2, .mark = {2, "2"}}.first()), 2) << "it is not one before";
    partitions.add(first, begin);
    EXPECT_EQ(read_one(first, 2), Partitions::Read::ignored);
    EXPECT_EQ(read_one(first, 3), Partitions::Read::entered);
    EXPECT_THAT(ids(take()), ElementsAre("3"));
    partitions.add(first, begin);
    EXPECT_EQ(read_one(first, 2, "another "), Partitions::Read::recreated);
    partitions.add(first, begin);  // the record was deleted
    EXPECT_EQ(read_one(first, 4), Partitions::Read::entered);
    EXPECT_EQ(read_one(first, 3), Partitions::Read::doubtful);
}

TEST_F(PartitionsTest, RecordsThatAreReadAgainToCompareThemAreNotDeliveredAgain) {
    partitions.add(first, {.offset = 0});
    read(first, {0, 1, 2});
    EXPECT_EQ(read_one(first, 0), Partitions::Read::doubtful);
    EXPECT_EQ(find_again(Why::doubtful, 0, 3).from, 0) << "the first one is known";
    read(first, {0, 1, 2, 3});
    EXPECT_THAT(ids(take()), ElementsAre("0", "1", "2", "3"));
    partitions.checked(first);
    EXPECT_EQ(find_again(Why::doubtful, 0, 4).from, 3);
    EXPECT_EQ(read_one(first, 3, "another "), Partitions::Read::recreated);
}

TEST_F(PartitionsTest, APartitionThatHasGrownSinceItsOffsetWasOutOfRangeIsCompared) {
    partitions.add(first, {.offset = 3, .mark = {2, "2"}});
    EXPECT_FALSE(partitions.ended(first, 2)) << "the new topic has two records";
    const Partitions::Found found = find_again(Why::out_of_range, 0, 8);
    EXPECT_EQ(found.from, 2);
    EXPECT_FALSE(found.recreated);
    EXPECT_EQ(read_one(first, 2, "another "), Partitions::Read::recreated);
    EXPECT_TRUE(find_again(Why::recreated, 0, 8).recreated);
}

TEST_F(PartitionsTest, APartitionWithoutAMarkIsJudgedByItsOffsets) {
    partitions.add(first, {.offset = 0});
    EXPECT_EQ(find_again(Why::doubtful, 0, 5).from, 0)
        << "nothing was read: nothing is passed over";
    EXPECT_EQ(find_again(Why::doubtful, 2, 5).skipped, 2);
    partitions.add(first, {.offset = 3});
    EXPECT_EQ(find_again(Why::doubtful, 0, 5).from, 3);
    for (const Partitions::Found found :
         {find_again(Why::out_of_range, 0, 5), find_again(Why::doubtful, 0, 2)}) {
        EXPECT_TRUE(found.recreated);
        EXPECT_EQ(found.from, 0);
    }
    partitions.add(first, {.offset = -1});
    EXPECT_EQ(find_again(Why::out_of_range, 4, 5).from, 4);
}

TEST_F(PartitionsTest, AMarkThatWasDeletedIsNotAskedForAgain) {
    partitions.add(first, {.offset = 3, .mark = {2, "2"}});
    const Partitions::Found found = find_again(Why::out_of_range, 3, 5);
    EXPECT_EQ(found.from, 3);
    EXPECT_EQ(found.skipped, 0);
    EXPECT_FALSE(found.recreated);
    EXPECT_EQ(read_one(first, 3), Partitions::Read::entered);
}

TEST_F(PartitionsTest, RecordsAreCheckedAgainstThoseBefore) {
    partitions.add(first, {.offset = 0});
    partitions.add(second, {.offset = 0});
    read(first, {5, 6});
    std::map<Place, Partitions::Checked> before = partitions.take_unchecked();
    ASSERT_THAT(before, SizeIs(1));
    EXPECT_EQ(before[first].next, 6) << "the first record is known";
    EXPECT_EQ(before[first].newest, at(5));
    EXPECT_THAT(partitions.take_unchecked(), IsEmpty());
    partitions.checked(first);
    read(first, {8});
    before = partitions.take_unchecked();
    EXPECT_EQ(before[first].next, 7);
    EXPECT_EQ(before[first].newest, at(6));
    EXPECT_EQ(before[first].last.offset, 6);
}

TEST_F(PartitionsTest, RecordsOfATopicThatWasMadeAgainAreStillApplied) {
    partitions.add(first, {.offset = 0});
    read(first, {0, 1, 2});
    const std::vector<Delivery> old = take(2);
    partitions.begin_again(first, 0);
    EXPECT_EQ(partitions.take_uncommitted().at(0).offset, 0);
    EXPECT_FALSE(partitions.is_recalled(old[0]));
    nack({old[1]});
    EXPECT_EQ(read_one(first, 0, "new "), Partitions::Read::entered);
    const std::vector<Delivery> taken = take();
    EXPECT_THAT(ids(taken), ElementsAre("1", "2", "0"));
    EXPECT_EQ(partitions.outstanding(), 4u);
    EXPECT_THAT(positions({&taken[0]}), IsEmpty());
    for (const Delivery* one : {&old[0], &taken[0], &taken[1]})
        ack(*one);
    EXPECT_EQ(partitions.position_of(first), 0) << "it counts in the new topic only";
    EXPECT_TRUE(partitions.is_recalled(old[0])) << "it is forgotten";
    ack(taken[2]);
    EXPECT_EQ(partitions.take_uncommitted().at(0).mark.text(), "0 new 0");
    EXPECT_EQ(partitions.outstanding(), 0u);
}

TEST_F(PartitionsTest, DeletedRecordsAreSkipped) {
    partitions.add(first, {.offset = 3, .mark = {2, "2"}});
    const Partitions::Found found = find_again(Why::out_of_range, 7, 9);
    EXPECT_EQ(found.from, 7);
    EXPECT_EQ(found.skipped, 4);
    EXPECT_EQ(partitions.position_of(first), 7);
    EXPECT_EQ(read_one(first, 7), Partitions::Read::entered);
}

TEST_F(PartitionsTest, APartitionWithTooManyUnsettledRecordsIsPaused) {
    partitions.add(first, {.offset = 0});
    std::vector<Delivery> taken;
    bool goes_on = true;
    std::int64_t offset = 0;
    for (; goes_on && offset < 1'000'000; offset++) {
        goes_on = partitions.read(first, offset, {}) == Partitions::Read::entered;
        for (Delivery& each : take())
            taken.push_back(std::move(each));
    }
    EXPECT_EQ(static_cast<std::size_t>(offset), Partitions::max_unsettled);
    for (std::size_t i = 1; i < taken.size(); i++)
        ack(taken[i]);
    EXPECT_THAT(partitions.take_resumed(), IsEmpty());  // the first one is not settled
    ack(taken[0]);
    EXPECT_THAT(partitions.take_resumed(), ElementsAre(first));
    EXPECT_THAT(partitions.take_resumed(), IsEmpty());
}

// Whatever happens, a position never passes a record that was not acknowledged.
TEST_F(PartitionsTest, NoRecordIsEverPassed) {
    for (unsigned seed = 0; seed < 50; seed++) {
        std::mt19937 random(seed);
        const auto chance = [&](unsigned of) { return random() % of == 0; };
        Partitions tried{"s"};
        tried.add(first, {.offset = 0});
        std::set<std::int64_t> applied;
        std::int64_t next = 0, checked = 0;
        std::vector<Delivery> out;
        for (int step = 0; step < 300; step++) {
            if (chance(2)) {
                Delivery delivery;
                delivery.message_id = std::to_string(next);
                tried.read(first, next++, std::move(delivery));
            }
            if (chance(3))
                std::ranges::move(tried.take(1 + random() % 3), std::back_inserter(out));
            std::ranges::shuffle(out, random);
            if (!out.empty() && chance(2)) {
                applied.insert(std::stoll(out.back().message_id));
                tried.ack(std::span(&out.back(), 1));
                out.pop_back();
            } else if (!out.empty() && chance(4)) {
                tried.nack(std::span(&out.back(), 1));
                out.pop_back();
            }
            if (chance(60)) {  // it goes to another process and comes back
                const std::int64_t position = tried.position_of(first);
                tried.remove(first);
                tried.add(first, {.offset = position});
                next = position;
            }
            for (; checked < tried.position_of(first); checked++)
                ASSERT_TRUE(applied.contains(checked)) << "seed " << seed;
        }
    }
}

}  // namespace
}  // namespace inbox::kafka
