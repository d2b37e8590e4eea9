// Secrets in the text of a server.
#include <gtest/gtest.h>

#include <string>

#include "core/conceal.hpp"

namespace outbox {
namespace {

constexpr std::string_view secret = "s3cret-s3cret-1";

std::string concealed(std::string text) {
    conceal(text, secret);
    return text;
}

TEST(Conceal, ReplacesEveryOccurrence) {
    EXPECT_EQ(concealed("a s3cret-s3cret-1, s3cret-s3cret-1s3cret-s3cret-1 b"), "a ***, ****** b");
    EXPECT_EQ(concealed("s3cret-s3cret-1"), "***");
}

TEST(Conceal, ReplacesASecretThatIsCutOffAtTheEnd) {
    EXPECT_EQ(concealed("token s3cret-s3cret-"), "token ***");
    EXPECT_EQ(concealed("token s3cret-s"), "token ***");
    EXPECT_EQ(concealed("s3cret-s3cret-1 s3cret-s3"), "*** ***");
}

TEST(Conceal, LeavesEverythingElse) {
    EXPECT_EQ(concealed(""), "");
    EXPECT_EQ(concealed("no such secret"), "no such secret");
    EXPECT_EQ(concealed("s3cret-s3cret-2 s3cret-"), "s3cret-s3cret-2 s3cret-");
}

TEST(Conceal, LeavesOrdinaryWords) {
    std::string text = "bad request";
    conceal(text, "bad");
    conceal(text, "");
    EXPECT_EQ(text, "bad request");
}

}  // namespace
}  // namespace outbox
