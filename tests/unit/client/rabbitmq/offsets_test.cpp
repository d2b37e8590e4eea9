#include "rabbitmq/offsets.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inbox::rabbitmq {
namespace {

using testing::IsEmpty;

Time at(int second) {
    return Time(std::chrono::seconds(second));
}

std::string text(const std::vector<Position>& positions) {
    return positions.size() == 1 ? positions.front().message_id : "";
}

class RabbitmqOffsets : public testing::Test {
  protected:
    void read(std::int64_t first, std::int64_t last) {
        for (std::int64_t offset = first; offset <= last; offset++)
            EXPECT_TRUE(offsets_.read(offset, at(static_cast<int>(offset))));
    }

    Offsets offsets_{"s"};
};

TEST_F(RabbitmqOffsets, ThePositionIsTheFirstMessageThatIsNotApplied) {
    EXPECT_EQ(offsets_.position(), std::nullopt);
    read(5, 8);
    EXPECT_EQ(offsets_.position(), 5);
    offsets_.apply(6);
    EXPECT_EQ(offsets_.position(), 5);
    offsets_.apply(5);
    EXPECT_EQ(offsets_.position(), 7);
    offsets_.apply(7);
    offsets_.apply(8);
    offsets_.apply(8);
    offsets_.apply(100);
    EXPECT_EQ(offsets_.position(), 9);
}

TEST_F(RabbitmqOffsets, OffsetsMayHaveGaps) {
    EXPECT_TRUE(offsets_.read(5, at(1)));
    EXPECT_TRUE(offsets_.read(9, at(1)));
    offsets_.apply(5);
    EXPECT_EQ(offsets_.position(), 9);
}

TEST_F(RabbitmqOffsets, ATransactionSavesWhatItReaches) {
    read(0, 3);
    EXPECT_EQ(text(offsets_.positions({0})), "1");
    EXPECT_THAT(offsets_.positions({2}), IsEmpty());
    offsets_.apply(0);
    EXPECT_THAT(offsets_.moved_positions(), IsEmpty());  // it is saved
    offsets_.apply(2);
    EXPECT_EQ(text(offsets_.positions({1})), "3");
    EXPECT_EQ(text(offsets_.positions({1, 3})), "4");
}

TEST_F(RabbitmqOffsets, PositionsThatAreSavedGoForward) {
    read(0, 3);
    EXPECT_EQ(text(offsets_.positions({0, 1, 2})), "3");
    EXPECT_THAT(offsets_.positions({0}), IsEmpty());
    offsets_.apply(0);
    EXPECT_THAT(offsets_.moved_positions(), IsEmpty());
    for (const std::int64_t offset : {1, 2, 3})
        offsets_.apply(offset);
    EXPECT_EQ(text(offsets_.moved_positions()), "4");
}

TEST_F(RabbitmqOffsets, APositionHasTheLastMessageBeforeItAsItsMark) {
    EXPECT_TRUE(offsets_.read(5, at(1), "five"));
    EXPECT_TRUE(offsets_.read(6, at(2), "six"));
    EXPECT_EQ(offsets_.positions({5}).front().incarnation, "5 five");
    offsets_.apply(5);
    offsets_.apply(6);
    EXPECT_EQ(offsets_.moved_positions().front().incarnation, "6 six");
    EXPECT_TRUE(offsets_.is_mark(6, "six", {}));
    EXPECT_FALSE(offsets_.is_mark(6, "another", {}));
    Offsets loaded("s");
    loaded.load(7, at(10));  // without a mark
    EXPECT_TRUE(loaded.is_mark(6, "six", {}));
    EXPECT_TRUE(loaded.is_mark(6, "six", at(10)));
    EXPECT_FALSE(loaded.is_mark(6, "six", at(11))) << "it is newer than the position";
}

TEST_F(RabbitmqOffsets, AStreamThatWasMadeAgainBeginsAgain) {
    offsets_.load(5, at(100), {4, "four"});
    EXPECT_TRUE(offsets_.read(5, at(101)));
    EXPECT_TRUE(offsets_.read(6, at(102)));
    offsets_.apply(6);
    offsets_.rewind();
    EXPECT_EQ(offsets_.begin_again(), 1u) << "messages that nobody can apply";
    EXPECT_EQ(offsets_.position(), std::nullopt);
    EXPECT_EQ(offsets_.time(), std::nullopt);
    EXPECT_TRUE(offsets_.read(0, at(1), "new"));
    EXPECT_GT(offsets_.positions({0}).front().published_at, at(100));
}

TEST_F(RabbitmqOffsets, TheBeginningIsSavedOnce) {
    offsets_.begin(at(7));
    const std::vector<Position> saved = offsets_.moved_positions();
    ASSERT_EQ(saved.size(), 1u);
    EXPECT_EQ(saved.front().message_id, "");
    EXPECT_EQ(saved.front().published_at, at(7));
    EXPECT_THAT(offsets_.moved_positions(), IsEmpty());
    EXPECT_TRUE(offsets_.read(3, at(1)));
    EXPECT_GT(offsets_.moved_positions().front().published_at, at(7));
}

// All messages until then would be skipped.
TEST_F(RabbitmqOffsets, AClockThatWentBackSinceTheBeginning) {
    offsets_.load(at(100), at(40));
    EXPECT_EQ(offsets_.time(), at(40));
    EXPECT_TRUE(offsets_.read(3, at(41)));
    EXPECT_GT(offsets_.positions({3}).front().published_at, at(100)) << "it would not be saved";
    offsets_.load(at(30), at(40));
    EXPECT_EQ(offsets_.time(), at(30));
}

TEST_F(RabbitmqOffsets, TimesOfPositionsGoForward) {
    offsets_.load(5, at(100));
    ASSERT_TRUE(offsets_.read(5, at(1)));
    ASSERT_TRUE(offsets_.read(6, at(200)));
    EXPECT_GT(offsets_.positions({5}).front().published_at, at(100));
    EXPECT_EQ(offsets_.positions({5, 6}).front().published_at, at(200));
}

TEST_F(RabbitmqOffsets, AfterARewindTheRestIsReadAgain) {
    read(0, 3);
    offsets_.apply(0);
    offsets_.apply(2);
    offsets_.rewind();
    EXPECT_EQ(offsets_.position(), 1);
    EXPECT_FALSE(offsets_.read(0, at(0)));
    read(1, 3);
    EXPECT_EQ(offsets_.size(), 3u);
}

TEST_F(RabbitmqOffsets, AMoveForgetsThePosition) {
    offsets_.load(5, at(100));
    offsets_.move(at(50));
    EXPECT_EQ(offsets_.position(), std::nullopt);
    EXPECT_EQ(offsets_.time(), at(50));
    EXPECT_THAT(offsets_.moved_positions(), IsEmpty());
    read(2, 2);
    const std::vector<Position> moved = offsets_.moved_positions();
    EXPECT_EQ(text(moved), "2");
    EXPECT_GT(moved.front().published_at, at(100));  // or it would not be saved
}

}  // namespace
}  // namespace inbox::rabbitmq
