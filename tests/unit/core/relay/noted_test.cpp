// Which rows of outbox.transaction may go. exactly_once_test.cpp has the whole protocol.
#include "core/relay/noted.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

using Committed = std::vector<std::optional<std::int64_t>>;

TEST(NotedTransactions, ARelayThatStartsOverForgetsWhatPassedBefore) {
    NotedTransactions noted;
    noted.recovered(Committed{1});
    noted.window_opened();
    noted.noted({.line = 0, .number = 2, .batches = {}});
    noted.window_settled();
    noted.advance(Committed{2}, -1);
    ASSERT_TRUE(noted.any_passed());
    // The cursor that passed them was not saved.
    noted.clear();
    EXPECT_FALSE(noted.any_passed());
    noted.recovered(Committed{2});
    EXPECT_FALSE(noted.any_passed());
}

}  // namespace
}  // namespace outbox
