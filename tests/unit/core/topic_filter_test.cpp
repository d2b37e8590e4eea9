#include "core/topic_filter.hpp"

#include <gtest/gtest.h>

#include <random>

namespace outbox {
namespace {

TEST(TopicPattern, WithoutStarMatchesItselfOnly) {
    EXPECT_TRUE(pattern_matches("video.events", "video.events"));
    EXPECT_FALSE(pattern_matches("video.events", "video.event"));
    EXPECT_FALSE(pattern_matches("video.events", "video.events2"));
    EXPECT_FALSE(pattern_matches("video.events", "my.video.events"));
    EXPECT_FALSE(pattern_matches("video.events", ""));
}

TEST(TopicPattern, StarStandsForAnyRunAlsoNone) {
    EXPECT_TRUE(pattern_matches("video.*", "video.events"));
    EXPECT_TRUE(pattern_matches("video.*", "video."));
    EXPECT_FALSE(pattern_matches("video.*", "video"));
    EXPECT_TRUE(pattern_matches("*.events", "video.events"));
    EXPECT_TRUE(pattern_matches("v*o", "vo"));
    EXPECT_TRUE(pattern_matches("*", ""));
    EXPECT_TRUE(pattern_matches("***", "video"));
}

TEST(TopicPattern, StarCrossesDots) {
    EXPECT_TRUE(pattern_matches("shop.*", "shop.eu.video.events"));
    EXPECT_TRUE(pattern_matches("*.video.*", "shop.eu.video.events"));
}

TEST(TopicPattern, GoesBackWhenAStarTookTooLittle) {
    EXPECT_TRUE(pattern_matches("*ab", "aab"));
    EXPECT_TRUE(pattern_matches("*aab*", "aaaab"));
    EXPECT_TRUE(pattern_matches("a*b*c", "abbcbc"));
    EXPECT_FALSE(pattern_matches("a*b*c", "abbcb"));
}

TEST(TopicPattern, KnowsNoOtherSpecialCharacterAndMindsCase) {
    EXPECT_FALSE(pattern_matches("video.events", "videoxevents"));
    EXPECT_FALSE(pattern_matches("video?events", "video.events"));
    EXPECT_FALSE(pattern_matches("[v]ideo", "video"));
    EXPECT_FALSE(pattern_matches("Video", "video"));
}

// The definition in its shortest form.
bool matches_by_definition(std::string_view pattern, std::string_view text) {
    if (pattern.empty())
        return text.empty();
    if (pattern.front() == '*')
        return matches_by_definition(pattern.substr(1), text) ||
               (!text.empty() && matches_by_definition(pattern, text.substr(1)));
    return !text.empty() && pattern.front() == text.front() &&
           matches_by_definition(pattern.substr(1), text.substr(1));
}

TEST(TopicPattern, AgreesWithItsDefinition) {
    std::mt19937 random(7);
    auto text_of = [&](std::string_view alphabet, std::size_t max_length) {
        std::string text(random() % (max_length + 1), ' ');
        for (char& c : text)
            c = alphabet[random() % alphabet.size()];
        return text;
    };
    int matched = 0;
    for (int i = 0; i < 20'000; i++) {
        const std::string pattern = text_of("ab**", 7), text = text_of("ab", 9);
        const bool expected = matches_by_definition(pattern, text);
        ASSERT_EQ(pattern_matches(pattern, text), expected) << pattern << " on " << text;
        matched += expected;
    }
    EXPECT_GT(matched, 1'000) << "the sample says nothing";
}

TEST(TopicPattern, ManyStarsTakeNoExponentialTime) {
    std::string pattern;
    for (int i = 0; i < 50; i++)
        pattern += "a*";
    EXPECT_FALSE(pattern_matches(pattern + "b", std::string(20'000, 'a')));
}

TEST(TopicFilter, TakesEverythingUnlessToldOtherwise) {
    EXPECT_TRUE(TopicFilter{}.matches_everything());
    EXPECT_TRUE(TopicFilter{}.matches("video.events"));
    EXPECT_TRUE(TopicFilter{}.matches(""));
}

TEST(TopicFilter, TakesWhatAnyOfItsPatternsTakes) {
    const auto filter = TopicFilter::parse("video.*, user.events");
    ASSERT_TRUE(filter);
    EXPECT_FALSE(filter.value().matches_everything());
    EXPECT_TRUE(filter.value().matches("video.events"));
    EXPECT_TRUE(filter.value().matches("user.events"));
    EXPECT_FALSE(filter.value().matches("user.profile"));
    EXPECT_FALSE(filter.value().matches(""));
}

TEST(TopicFilter, IgnoresBlanksAroundPatterns) {
    const auto filter = TopicFilter::parse(" \tvideo.* \n,\r user.events ");
    ASSERT_TRUE(filter);
    EXPECT_TRUE(filter.value().matches("video.events"));
    EXPECT_TRUE(filter.value().matches("user.events"));
}

TEST(TopicFilter, AStarAmongThePatternsTakesEverything) {
    const auto filter = TopicFilter::parse("video.*, *");
    ASSERT_TRUE(filter);
    EXPECT_TRUE(filter.value().matches_everything());
    EXPECT_TRUE(filter.value().matches("anything"));
}

TEST(TopicFilter, RefusesEmptyPatternsAndShowsAList) {
    for (const char* list : {"", " ", ",", "video.*,", ", video.*", "video.*,, user.*", "*,"}) {
        const auto filter = TopicFilter::parse(list);
        ASSERT_FALSE(filter) << '"' << list << '"';
        EXPECT_EQ(filter.error().kind, ErrorKind::invalid_value);
        EXPECT_EQ(filter.error().message, "topic pattern is empty");
        EXPECT_NE(filter.error().hint, "");
    }
}

}  // namespace
}  // namespace outbox
