// Rows of outbox_internal.relay_endpoints() become the answer that a sink with endpoints gets.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "core/relay/calls.hpp"
#include "unit/core/sql/made_rows.hpp"

namespace outbox {
namespace {

using sql::big_endian;
using sql::MadeColumn;
using sql::MadeValue;
using sql::make_rows;
namespace type = sql::type;

constexpr sql::Oid name_type = 19, float8_type = 701;

const std::vector<MadeColumn> columns = {{"outcome", type::text},
                                         {"kind", type::text},
                                         {"endpoint", name_type},
                                         {"url", type::text},
                                         {"topics", type::text},
                                         {"secret_name", type::text},
                                         {"paused", type::boolean},
                                         {"behind", type::boolean},
                                         {"snapshot", type::text},
                                         {"count", type::int8},
                                         {"due_in", float8_type},
                                         {"attempts", type::int4},
                                         {"position", type::int8},
                                         {"xid", type::xid8},
                                         {"occurred_at", type::timestamptz},
                                         {"event_id", type::uuid},
                                         {"version", type::int8},
                                         {"schema_version", type::int4},
                                         {"source_event_id", type::uuid},
                                         {"topic", type::text},
                                         {"aggregate_type", type::text},
                                         {"aggregate_id", type::text},
                                         {"event_type", type::text},
                                         {"ordering_key", type::text},
                                         {"content_type", type::text},
                                         {"headers", type::jsonb},
                                         {"payload", type::bytea}};
enum Column {
    kind = 1,
    endpoint,
    url,
    topics,
    secret_name,
    paused,
    behind,
    snapshot,
    count,
    due_in,
    attempts,
    position
};

std::vector<MadeValue> row_of(const char* what) {
    std::vector<MadeValue> row(columns.size());
    row[0] = "ok";
    row[kind] = what;
    return row;
}

std::vector<MadeValue> event_for(const char* name, std::int64_t at, std::int32_t failed) {
    std::vector<MadeValue> row = row_of("event");
    row[endpoint] = name;
    row[attempts] = big_endian(failed);
    const std::vector<MadeValue> event = sql::event_values(at);
    std::copy(event.begin(), event.end(), row.begin() + position);
    return row;
}

std::vector<MadeValue> fetched_for(const char* name, const char* until = nullptr,
                                   std::optional<double> due = std::nullopt) {
    std::vector<MadeValue> row = row_of("fetched");
    row[endpoint] = name;
    if (until != nullptr)
        row[snapshot] = until;
    if (due)
        row[due_in] = big_endian(std::bit_cast<std::uint64_t>(*due));
    return row;
}

EndpointAnswer answer_of(const std::vector<std::vector<MadeValue>>& rows) {
    auto answer = calls::answer_of(make_rows(columns, rows));
    EXPECT_TRUE(answer);
    return answer ? std::move(*answer) : EndpointAnswer{};
}

TEST(EndpointAnswer, RowsOfTheTable) {
    auto known = row_of("known");
    known[snapshot] = "5:9:6";
    known[count] = big_endian(std::int64_t{3});
    auto acme = row_of("endpoint");
    acme[endpoint] = acme[secret_name] = "acme";
    acme[url] = "https://acme.example/hook";
    acme[topics] = "order";
    acme[paused] = acme[behind] = std::string(1, '\1');
    acme[snapshot] = "7:7:";
    auto other = row_of("endpoint");
    other[endpoint] = "other";
    other[due_in] = big_endian(std::uint64_t{0});
    const EndpointAnswer answer = answer_of({known, acme, other});
    EXPECT_EQ(answer.known, "5:9:6");
    EXPECT_EQ(answer.count, 3u);
    ASSERT_EQ(answer.changed.size(), 2u);
    EXPECT_EQ(answer.changed[0].name, "acme");
    EXPECT_EQ(answer.changed[0].url, "https://acme.example/hook");
    EXPECT_EQ(answer.changed[0].topics, "order");
    EXPECT_EQ(answer.changed[0].secret_name, "acme");
    EXPECT_TRUE(answer.changed[0].paused);
    EXPECT_TRUE(answer.changed[0].behind);
    EXPECT_FALSE(answer.changed[0].wanted);
    EXPECT_EQ(answer.changed[0].since, Snapshot::parse("7:7:"));
    EXPECT_FALSE(answer.changed[1].paused);
    EXPECT_TRUE(answer.changed[1].wanted);
    EXPECT_EQ(answer.changed[1].since, std::nullopt);
}

TEST(EndpointAnswer, EventsBelongToTheirEndpoint) {
    const EndpointAnswer answer = answer_of(
        {event_for("a", 1, 2), event_for("a", 2, 0), fetched_for("a"), fetched_for("b", "8:8:"),
         fetched_for("c", nullptr, 1.5), event_for("d", 1, 0), fetched_for("d")});
    ASSERT_EQ(answer.fetched.size(), 4u);
    EXPECT_EQ(answer.fetched[0].name, "a");
    ASSERT_EQ(answer.fetched[0].events.size(), 2u);
    EXPECT_EQ(answer.fetched[0].events[0]->position, 1);
    EXPECT_EQ(answer.fetched[0].events[1]->position, 2);
    EXPECT_EQ(answer.fetched[0].events[1]->xid, 77u);
    EXPECT_EQ(answer.fetched[0].attempts, (std::vector{2, 0}));
    EXPECT_EQ(answer.fetched[0].due_in, -1);
    EXPECT_EQ(answer.fetched[1].caught_up, Snapshot::parse("8:8:"));
    EXPECT_EQ(answer.fetched[2].due_in, milliseconds(1500));
    EXPECT_EQ(answer.fetched[3].events.size(), 1u);
}

TEST(EndpointAnswer, ManyEventsFillSeveralBlocks) {
    std::vector<std::vector<MadeValue>> rows;
    for (std::size_t i = 0; i < 2 * EventBlock::max_events; i++)
        rows.push_back(event_for("a", static_cast<std::int64_t>(i), 0));
    rows.push_back(fetched_for("a"));
    const EndpointAnswer answer = answer_of(rows);
    EXPECT_EQ(answer.blocks.size(), 2u);
    for (std::size_t i = 0; i < answer.fetched[0].events.size(); i++)
        EXPECT_EQ(answer.fetched[0].events[i]->position, static_cast<std::int64_t>(i));
}

TEST(EndpointAnswer, UnknownRowsAndTimesThatNeverComeAreHarmless) {
    const EndpointAnswer answer = answer_of(
        {row_of("news"), fetched_for("a", "nonsense", std::numeric_limits<double>::infinity())});
    EXPECT_EQ(answer.fetched[0].caught_up, std::nullopt);
    EXPECT_EQ(answer.fetched[0].due_in, -1);
}

TEST(EndpointAnswer, AnIncompleteEventIsRejected) {
    auto event = event_for("acme", 5, 0);
    event[position + 1] = std::nullopt;
    EXPECT_FALSE(calls::answer_of(make_rows(columns, {event})));
    EXPECT_FALSE(calls::answer_of(make_rows({{"outcome", type::text}}, {{"ok"}})));
}

}  // namespace
}  // namespace outbox
