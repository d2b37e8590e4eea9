#include "core/endpoint_answer.hpp"

#include <gtest/gtest.h>

#include "unit/event_spec.hpp"

namespace outbox {
namespace {

struct EndpointAnswerTest : testing::Test {
    EndpointAnswerBuilder builder;

    void add_event(std::string_view endpoint, std::int64_t position, int attempts = 0) {
        if (!append(builder.block(), {.position = position})) {
            builder.next_block();
            append(builder.block(), {.position = position});
        }
        EndpointAnswerRow row;
        row.kind = EndpointAnswerBuilder::event;
        row.endpoint = endpoint;
        row.attempts = attempts;
        builder.add(row);
    }
    void add_fetched(std::string_view endpoint, std::string_view snapshot,
                     std::optional<double> due_in = std::nullopt) {
        EndpointAnswerRow row;
        row.kind = "fetched";
        row.endpoint = endpoint;
        row.snapshot = snapshot;
        row.due_in = due_in;
        builder.add(row);
    }
};

TEST_F(EndpointAnswerTest, RowsOfTheTable) {
    EndpointAnswerRow known;
    known.kind = "known";
    known.snapshot = "5:9:6";
    known.count = 3;
    builder.add(known);
    EndpointAnswerRow row;
    row.kind = "endpoint";
    row.endpoint = "acme";
    row.url = "https://acme.example/hook";
    row.topics = "order";
    row.secret_name = "acme";
    row.paused = row.behind = true;
    row.snapshot = "7:7:";
    builder.add(row);
    row.endpoint = "other";
    row.paused = row.behind = false;
    row.snapshot = "";
    row.due_in = 0;
    builder.add(row);
    const EndpointAnswer answer = builder.take();
    EXPECT_EQ(answer.known, "5:9:6");
    EXPECT_EQ(answer.count, 3u);
    ASSERT_EQ(answer.changed.size(), 2u);
    EXPECT_EQ(answer.changed[0].name, "acme");
    EXPECT_EQ(answer.changed[0].url, "https://acme.example/hook");
    EXPECT_TRUE(answer.changed[0].paused);
    EXPECT_TRUE(answer.changed[0].behind);
    EXPECT_FALSE(answer.changed[0].wanted);
    EXPECT_EQ(answer.changed[0].since, Snapshot::parse("7:7:"));
    EXPECT_TRUE(answer.changed[1].wanted);
    EXPECT_EQ(answer.changed[1].since, std::nullopt);
}

TEST_F(EndpointAnswerTest, EventsBelongToTheirEndpoint) {
    add_event("a", 1, 2);
    add_event("a", 2);
    add_fetched("a", "");
    add_fetched("b", "8:8:");
    add_fetched("c", "", 1.5);
    add_event("d", 1);
    add_fetched("d", "");
    const EndpointAnswer answer = builder.take();
    ASSERT_EQ(answer.fetched.size(), 4u);
    EXPECT_EQ(answer.fetched[0].name, "a");
    ASSERT_EQ(answer.fetched[0].events.size(), 2u);
    EXPECT_EQ(answer.fetched[0].events[0]->position, 1);
    EXPECT_EQ(answer.fetched[0].events[1]->position, 2);
    EXPECT_EQ(answer.fetched[0].attempts, (std::vector{2, 0}));
    EXPECT_EQ(answer.fetched[0].due_in, -1);
    EXPECT_EQ(answer.fetched[1].caught_up, Snapshot::parse("8:8:"));
    EXPECT_EQ(answer.fetched[2].due_in, milliseconds(1500));
    EXPECT_EQ(answer.fetched[3].events.size(), 1u);
}

TEST_F(EndpointAnswerTest, ManyEventsFillSeveralBlocks) {
    for (std::size_t i = 0; i < 2 * EventBlock::max_events; i++)
        add_event("a", static_cast<std::int64_t>(i));
    add_fetched("a", "");
    const EndpointAnswer answer = builder.take();
    EXPECT_EQ(answer.blocks.size(), 2u);
    for (std::size_t i = 0; i < answer.fetched[0].events.size(); i++)
        EXPECT_EQ(answer.fetched[0].events[i]->position, static_cast<std::int64_t>(i));
}

TEST_F(EndpointAnswerTest, UnknownRowsAndTimesThatNeverComeAreHarmless) {
    EndpointAnswerRow row;
    row.kind = "news";
    builder.add(row);
    add_fetched("a", "nonsense", std::numeric_limits<double>::infinity());
    const EndpointAnswer answer = builder.take();
    EXPECT_EQ(answer.fetched[0].caught_up, std::nullopt);
    EXPECT_EQ(answer.fetched[0].due_in, -1);
}

}  // namespace
}  // namespace outbox
