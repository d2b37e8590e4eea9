// Work that takes too long is interrupted; other work is not.
#include "net/watchdog.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

using std::chrono::milliseconds;

TEST(Watchdog, BarksUntilTheWorkEnds) {
    std::atomic<int> barks = 0;
    Watchdog watchdog(milliseconds(5), [&] { barks++; });
    for (int round = 1; round <= 3; round++) {
        watchdog.begin();
        while (barks < 2 * round) {
        }
        watchdog.end();
        std::this_thread::sleep_for(milliseconds(20));  // long enough for it to go to sleep
        barks = 2 * round;
    }
}

TEST(Watchdog, IsQuietWhileWorkIsShortOrOnlyWaits) {
    std::atomic<int> barks = 0;
    Watchdog watchdog(milliseconds(50), [&] { barks++; });
    for (int i = 0; i < 100'000; i++) {
        watchdog.begin();
        watchdog.end();
    }
    watchdog.begin();
    std::this_thread::sleep_for(milliseconds(200));
    watchdog.end();
    EXPECT_EQ(barks, 0);
}

}  // namespace
}  // namespace outbox
