// A sink outside the product: it needs only its own folder and an entry in the list of sinks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sinks/registry.hpp"
#include "sinks/sink_loader.hpp"
#include "unit/sinks/tiny/options.hpp"

namespace outbox {

// Replaces lib/sinks/sink_list.cpp in this program.
std::span<const SinkDeclaration* const> all_sinks() noexcept {
    static constexpr const SinkDeclaration* sinks[] = {&tiny_declaration};
    return sinks;
}

namespace {

using testing::ElementsAre;

Destination destination(std::vector<Option> options) {
    Result<Destination> parsed = parse_destination("d", std::move(options), {}, {});
    EXPECT_TRUE(parsed) << parsed.error().message;
    return std::move(parsed.value());
}

TEST(TinySink, IsKnownToTheValidator) {
    EXPECT_EQ(validate_server_options({{"url", "tiny:"}, {"prefix", "a"}, {"topics", "b.*"}}),
              std::nullopt);

    std::optional<Error> error = validate_server_options({{"url", "tiny:"}, {"perfix", "a"}});
    ASSERT_TRUE(error);
    EXPECT_EQ(error->hint,
              "Valid options are: url, topics, filter, payload, start, max_attempts, retry_base, "
              "retry_max, "
              "on_dead_letter, receipts, relay, prefix.");
    error = validate_server_options({{"url", "tiny:"}, {"prefix", ""}});
    ASSERT_TRUE(error);
    EXPECT_EQ(error->message, "option \"prefix\" must not be empty or contain control characters");
    error = validate_server_options({{"url", "tiny:x"}});
    ASSERT_TRUE(error);
    EXPECT_EQ(error->hint, "Write \"tiny:\".");
    error = validate_server_options({{"url", "null:"}});
    ASSERT_TRUE(error);
    EXPECT_EQ(error->hint, "Supported schemes are: tiny.");
}

// Its module is beside this program, as modules of other sinks are beside pg_outbox.so.
TEST(TinySink, IsLoadedAndReadsItsOptions) {
    const SystemClock clock;
    for (const std::string prefix : {"", "other-"}) {
        std::vector<Option> options{{"url", "tiny:"}};
        if (!prefix.empty())
            options.push_back({"prefix", prefix});
        const Destination tiny = destination(options);

        Result<std::unique_ptr<Sink>> sink = create_sink({tiny, clock});
        ASSERT_TRUE(sink) << sink.error().message << ": " << sink.error().detail;
        EXPECT_EQ(sink.value()->capabilities().ordered, tiny.sink->ordered);
        Event event;
        event.topic = "video.events";
        Batch batch{.events = {&event}};
        sink.value()->submit(batch);
        std::vector<Outcome> outcomes;
        sink.value()->step(clock.now(), outcomes);
        ASSERT_EQ(outcomes.size(), 1u);
        EXPECT_EQ(outcomes.front().fate, Fate::confirmed);
        EXPECT_THAT(outcomes.front().message_ids,
                    ElementsAre((prefix.empty() ? "tiny-" : prefix) + "video.events"));
    }
}

TEST(TinySink, HasACheck) {
    const SystemClock clock;
    const Destination tiny = destination({{"url", "tiny:"}, {"prefix", "x-"}});
    Result<std::unique_ptr<Check>> check = create_check({tiny, clock, {}});
    ASSERT_TRUE(check) << check.error().message << ": " << check.error().detail;
    std::vector<Finding> findings;
    EXPECT_TRUE(check.value()->step(clock.now(), findings));
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings.front().subject, "prefix");
    EXPECT_EQ(findings.front().detail, "x-");
}

}  // namespace
}  // namespace outbox
