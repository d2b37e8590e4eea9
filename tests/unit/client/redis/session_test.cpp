#include "redis/session.hpp"

#include <gtest/gtest.h>

#include "../../fake_clock.hpp"

namespace inbox::redis {
namespace {

// pg_inbox saves a position only if its time is later than the saved one.
class RedisSession : public testing::Test {
  protected:
    RedisSession() {
        setup_.hosts = {{"host", "6379"}};
        setup_.streams = {"s"};
        setup_.group = "g";
        session_.emplace(setup_, 0, clock_, -1);
    }
    Time now() const { return Time(std::chrono::microseconds(clock_.unix_now())); }
    Time time_of_position(Time published_at = {}) {
        Delivery delivery;
        delivery.message_id = "6-1";
        delivery.published_at = published_at;
        return session_->position_of(delivery).published_at;
    }

    redis::Setup setup_;
    outbox::FakeClock clock_;
    std::optional<Session> session_;
};

TEST_F(RedisSession, TimesOfPositionsGoForwardWhenTheClockGoesBack) {
    const Time first = time_of_position();
    EXPECT_EQ(first, now());
    clock_.set_unix(clock_.unix_now() - outbox::seconds(3600));
    const Time second = time_of_position();
    EXPECT_GT(second, first);
    EXPECT_GT(time_of_position(now()), second);
}

TEST_F(RedisSession, TimesOfPositionsAreLaterThanTheSavedOne) {
    Position saved;
    saved.message_id = "5-1";
    saved.published_at = now() + std::chrono::hours(1);
    session_->load(saved);
    EXPECT_GT(time_of_position(), saved.published_at);
}

}  // namespace
}  // namespace inbox::redis
