// Rows of outbox.event become events.
#include "core/sql/event_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "unit/core/sql/made_rows.hpp"

namespace outbox::sql {
namespace {

const std::vector<MadeColumn> columns = {
    {"position", type::int8},        {"xid", type::xid8},        {"occurred_at", type::timestamptz},
    {"event_id", type::uuid},        {"version", type::int8},    {"schema_version", type::int4},
    {"source_event_id", type::uuid}, {"topic", type::text},      {"aggregate_type", type::text},
    {"aggregate_id", type::text},    {"event_type", type::text}, {"ordering_key", type::text},
    {"content_type", type::text},    {"headers", type::jsonb},   {"payload", type::bytea}};
enum Column {
    position,
    xid,
    occurred_at,
    event_id,
    version,
    schema_version,
    source_event_id,
    topic,
    headers = 13,
    payload
};

EventRows start(std::vector<std::vector<MadeValue>> rows) {
    EventRows events;
    EXPECT_TRUE(events.start(make_rows(columns, std::move(rows))));
    return events;
}

TEST(EventRows, AllFields) {
    auto row = event_values(5);
    row[version] = big_endian(std::int64_t{9});
    row[source_event_id] = std::string(16, '\1');
    row[headers] = "\1{\"a\": \"\\u00e4\\\"\", \"n\": 1.50, \"t\": true, \"z\": null}";
    EventRows rows = start({row});
    EventBlock block;
    ASSERT_EQ(rows.copy(0, block), EventRows::Copied::yes);
    const Event& event = block.events().front();
    EXPECT_EQ(event.position, 5);
    EXPECT_EQ(event.xid, 77u);
    EXPECT_EQ(event.occurred_at, 946'684'801'000'000);
    EXPECT_EQ(event.event_id[0], 7);
    EXPECT_TRUE(event.has_version);
    EXPECT_EQ(event.version, 9);
    EXPECT_TRUE(event.has_source_event_id);
    EXPECT_EQ(event.schema_version, 3);
    EXPECT_EQ(event.topic, "topic");
    EXPECT_EQ(event.ordering_key, "key");
    EXPECT_EQ(event.payload, "{}");
    std::map<std::string_view, std::string_view> seen;
    for (const Header& header : event.headers)
        seen[header.name] = header.value;
    EXPECT_EQ(seen, (std::map<std::string_view, std::string_view>{
                        {"a", "ä\""}, {"n", "1.50"}, {"t", "true"}, {"z", ""}}));
    EXPECT_EQ(event.headers[3].kind, Header::Kind::null);
}

TEST(EventRows, AnEventWithoutOptionalFields) {
    auto row = event_values(1);
    row[payload] = std::nullopt;
    EventRows rows = start({row});
    EventBlock block;
    ASSERT_EQ(rows.copy(0, block), EventRows::Copied::yes);
    const Event& event = block.events().front();
    EXPECT_FALSE(event.has_payload);
    EXPECT_FALSE(event.has_version);
    EXPECT_FALSE(event.has_source_event_id);
    EXPECT_TRUE(event.headers.empty());
}

TEST(EventRows, ARowThatLacksAValueIsUnreadable) {
    for (const Column column : {position, xid, occurred_at, event_id, schema_version, topic}) {
        auto row = event_values(1);
        row[column] = std::nullopt;
        EventRows rows = start({row});
        EventBlock block;
        EXPECT_EQ(rows.copy(0, block), EventRows::Copied::unreadable) << column;
    }
    auto row = event_values(1);
    row[headers] = "\1[1]";
    EventRows rows = start({row});
    EventBlock block;
    EXPECT_EQ(rows.copy(0, block), EventRows::Copied::unreadable);
}

TEST(EventRows, AFullBlockTakesNoMore) {
    auto row = event_values(1);
    row[payload] = std::string(EventBlock::usual_bytes / 2, 'x');
    EventRows rows = start({row, row});
    EventBlock block;
    EXPECT_EQ(rows.copy(0, block), EventRows::Copied::yes);
    EXPECT_EQ(rows.copy(1, block), EventRows::Copied::block_is_full);
    EXPECT_EQ(block.events().size(), 1u);
}

TEST(EventRows, OtherColumnsAreRefused) {
    EventRows events;
    EXPECT_FALSE(events.start(make_rows({{"position", type::int8}}, {})));
    auto wrong = columns;
    wrong[xid].type = type::int8;
    EXPECT_FALSE(events.start(make_rows(wrong, {})));
}

}  // namespace
}  // namespace outbox::sql
