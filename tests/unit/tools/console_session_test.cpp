// Sessions of the console: who gets one, how long it lasts, how many there are.
#include "console_session.hpp"

#include <gtest/gtest.h>

namespace outboxctl {

namespace {

using namespace std::chrono_literals;

const std::string token = "a token of the console";

struct Sessions : testing::Test {
    ConsoleSessions::Clock::time_point now{};
    ConsoleSessions sessions{token, [this] { return now; }};

    bool lives(const std::string& id) { return sessions.csrf_token(id).has_value(); }
};

TEST_F(Sessions, NeedTheToken) {
    for (const std::string& guess :
         {std::string(), token + "x", token.substr(1), token.substr(1) + "x"})
        EXPECT_EQ(sessions.log_in(guess), std::nullopt);
    EXPECT_TRUE(lives(sessions.log_in(token).value()));
    EXPECT_FALSE(lives(""));
}

TEST_F(Sessions, EndAfterTwelveHoursOfWhateverUse) {
    const std::string first = sessions.log_in(token).value();
    now += 6h;
    const std::string second = sessions.log_in(token).value();
    now += 6h - 1s;
    EXPECT_TRUE(lives(first));
    now += 1s;
    EXPECT_FALSE(lives(first));
    EXPECT_TRUE(lives(second));
    now += 6h;
    EXPECT_FALSE(lives(second));
}

TEST_F(Sessions, AreNoMoreThanSixtyFourAndTheOldestGoes) {
    std::vector<std::string> ids;
    for (int i = 0; i < 64; i++)
        ids.push_back(sessions.log_in(token).value());
    for (const std::string& id : ids)
        EXPECT_TRUE(lives(id));
    EXPECT_EQ(sessions.log_in("a guess"), std::nullopt);
    EXPECT_TRUE(lives(ids[0])) << "a wrong token ends nobody's session";
    ids.push_back(sessions.log_in(token).value());
    EXPECT_FALSE(lives(ids[0]));
    for (std::size_t i = 1; i < ids.size(); i++)
        EXPECT_TRUE(lives(ids[i]));
}

TEST_F(Sessions, HaveTokensOfTheirOwn) {
    const std::string a = sessions.log_in(token).value(), b = sessions.log_in(token).value();
    const std::string of_a = sessions.csrf_token(a).value();
    EXPECT_TRUE(sessions.is_csrf_token(a, of_a));
    EXPECT_FALSE(sessions.is_csrf_token(b, of_a));
    now += 12h;
    EXPECT_FALSE(sessions.is_csrf_token(a, of_a));
    sessions.log_out(b);
    EXPECT_FALSE(lives(b));
}

}  // namespace

}  // namespace outboxctl
