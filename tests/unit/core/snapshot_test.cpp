#include "core/snapshot.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace outbox {
namespace {

constexpr std::uint64_t highest_xid = std::numeric_limits<std::uint64_t>::max();

TEST(Snapshot, EverythingBelowXminHadFinished) {
    const Snapshot snapshot{10, 20, {10, 15}};
    EXPECT_TRUE(snapshot.finished(1));
    EXPECT_TRUE(snapshot.finished(9));
}

TEST(Snapshot, NothingFromXmaxOnHadFinished) {
    const Snapshot snapshot{10, 20, {10, 15}};
    EXPECT_FALSE(snapshot.finished(20));
    EXPECT_FALSE(snapshot.finished(21));
    EXPECT_FALSE(snapshot.finished(highest_xid));
}

TEST(Snapshot, InBetweenEverythingHadFinishedThatIsNotListed) {
    const Snapshot snapshot{10, 20, {10, 15, 19}};
    EXPECT_FALSE(snapshot.finished(10));
    EXPECT_TRUE(snapshot.finished(11));
    EXPECT_TRUE(snapshot.finished(14));
    EXPECT_FALSE(snapshot.finished(15));
    EXPECT_TRUE(snapshot.finished(16));
    EXPECT_FALSE(snapshot.finished(19));
}

TEST(Snapshot, ATransactionThatIsJustBeingPreparedCountsOnce) {
    Snapshot snapshot{10, 20, {17, 10, 15, 10}};
    snapshot.order_xip();
    EXPECT_EQ(snapshot, (Snapshot{10, 20, {10, 15, 17}}));
}

TEST(Snapshot, NothingHadFinishedInTheFirstOne) {
    EXPECT_FALSE(Snapshot{}.finished(1));
    EXPECT_FALSE(Snapshot{}.finished(3));
}

TEST(Snapshot, ReadsAndWritesPostgresqlsText) {
    for (const char* text : {"1:1:", "10:20:", "10:20:10", "10:20:10,14,19",
                             "4294967296:4294967300:4294967297,4294967299",
                             "18446744073709551613:18446744073709551615:18446744073709551614"}) {
        const auto snapshot = Snapshot::parse(text);
        ASSERT_TRUE(snapshot) << text;
        EXPECT_EQ(snapshot->to_string(), text);
    }
}

TEST(Snapshot, ParsesItsParts) {
    EXPECT_EQ(Snapshot::parse("10:20:11,15"), (Snapshot{10, 20, {11, 15}}));
    EXPECT_EQ(Snapshot::parse("10:10:"), (Snapshot{10, 10, {}}));
}

TEST(Snapshot, LongestTextFitsTheRoomItAsksFor) {
    const Snapshot snapshot{highest_xid - 3, highest_xid, {highest_xid - 2, highest_xid - 1}};
    std::string text(snapshot.text_size(), '#');
    snapshot.write_text(text.data());
    EXPECT_LT(text.find('\0'), text.size());
    EXPECT_EQ(text.c_str(), snapshot.to_string());
}

// PostgreSQL also refuses each of them as a pg_snapshot, except the last one, which it changes
// without an error.
TEST(Snapshot, RefusesEveryOtherText) {
    for (const char* text : {"",
                             ":",
                             "::",
                             "10",
                             "10:",
                             "10:20",
                             ":20:",
                             "10::",
                             "0:20:",
                             "20:10:",
                             "10:20:9",
                             "10:20:20",
                             "10:20:15,12",
                             "10:20:x",
                             "10:20:12 ,13",
                             "10:20:12;13",
                             "10:20:,12",
                             "-10:20:",
                             "10:20:-12",
                             "a:20:",
                             "10:20:12,13x",
                             "18446744073709551616:18446744073709551617:"})
        EXPECT_FALSE(Snapshot::parse(text)) << '"' << text << '"';
}

}  // namespace
}  // namespace outbox
