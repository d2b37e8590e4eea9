#include <gmock/gmock.h>

#include "inbox/consumer.hpp"

namespace inbox {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;

std::string written(Level level, const std::string& message) {
    testing::internal::CaptureStderr();
    ConsumerOptions{}.log(level, message);
    return testing::internal::GetCapturedStderr();
}

TEST(ClientLog, IsStandardErrorUnlessItIsSet) {
    EXPECT_THAT(written(Level::warning, "the database is lost"),
                MatchesRegex("[0-9]{4}-[0-9-]+T[0-9:.]+Z warning the database is lost\n"));
    EXPECT_THAT(written(Level::error, "no"), HasSubstr(" error no\n"));
}

TEST(ClientLog, OrdinaryMessagesAreLeftOut) {
    EXPECT_THAT(written(Level::info, "connected"), IsEmpty());
    EXPECT_THAT(written(Level::debug, "connected"), IsEmpty());
}

TEST(ClientLog, AMessageIsOneLine) {
    EXPECT_THAT(written(Level::error, "one\ntwo\x1b[2J"), HasSubstr("one two"));
    EXPECT_THAT(written(Level::error, "one\ntwo\x1b[2J"), Not(HasSubstr("\x1b")));
    EXPECT_LT(written(Level::error, std::string(1'000'000, 'x')).size(), 4096u);
}

}  // namespace
}  // namespace inbox
