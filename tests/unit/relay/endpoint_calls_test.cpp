// Rows of outbox_internal.relay_endpoints() become the answer that a sink with endpoints gets.
#include <gtest/gtest.h>

#include "relay/serve/calls.hpp"
#include "unit/relay/made_rows.hpp"

namespace outbox::relay {
namespace {

constexpr Oid name_type = 19, float8_type = 701;

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
    paused = 6,
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
    row[position] = big_endian(at);
    const std::vector<MadeValue> rest = {big_endian(std::int64_t{77}),
                                         big_endian(std::int64_t{0}),
                                         std::string(16, '\7'),
                                         std::nullopt,
                                         big_endian(1),
                                         std::nullopt,
                                         "topic",
                                         "item",
                                         "id",
                                         "changed",
                                         "key",
                                         "application/json",
                                         std::nullopt,
                                         "{}"};
    std::copy(rest.begin(), rest.end(), row.begin() + position + 1);
    return row;
}

TEST(EndpointCalls, AnAnswer) {
    auto known = row_of("known");
    known[snapshot] = "5:5:";
    known[count] = big_endian(std::int64_t{2});
    auto changed = row_of("endpoint");
    changed[endpoint] = "acme";
    changed[url] = "https://acme.example/";
    changed[topics] = "*";
    changed[paused] = std::string(1, '\1');
    changed[behind] = std::string(1, '\1');
    auto fetched = row_of("fetched");
    fetched[endpoint] = "acme";
    auto nothing = row_of("fetched");
    nothing[endpoint] = "other";
    nothing[due_in] = std::string("\x3f\xf0\0\0\0\0\0\0", 8);  // 1.0
    const auto answer =
        calls::answer_of(make_rows(columns, {known, changed, event_for("acme", 5, 2),
                                             event_for("acme", 7, 0), fetched, nothing}));
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->known, "5:5:");
    EXPECT_EQ(answer->count, 2u);
    ASSERT_EQ(answer->changed.size(), 1u);
    EXPECT_EQ(answer->changed[0].name, "acme");
    EXPECT_TRUE(answer->changed[0].paused);
    EXPECT_TRUE(answer->changed[0].behind);
    ASSERT_EQ(answer->fetched.size(), 2u);
    ASSERT_EQ(answer->fetched[0].events.size(), 2u);
    EXPECT_EQ(answer->fetched[0].events[1]->position, 7);
    EXPECT_EQ(answer->fetched[0].events[1]->xid, 77u);
    EXPECT_EQ(answer->fetched[0].attempts, (std::vector{2, 0}));
    EXPECT_EQ(answer->fetched[1].due_in, seconds(1));
}

TEST(EndpointCalls, AnAnswerWithAnIncompleteEventIsRejected) {
    auto event = event_for("acme", 5, 0);
    event[position + 1] = std::nullopt;
    EXPECT_FALSE(calls::answer_of(make_rows(columns, {event})));
    EXPECT_FALSE(calls::answer_of(make_rows({{"outcome", type::text}}, {{"ok"}})));
}

}  // namespace
}  // namespace outbox::relay
