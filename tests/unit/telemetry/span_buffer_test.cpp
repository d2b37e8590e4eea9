#include "telemetry/span_buffer.hpp"

#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "net/json.hpp"
#include "unit/failing_new.hpp"

namespace outbox {
namespace {

const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736", parent = "00f067aa0ba902b7";

std::string traceparent(std::string_view flags) {
    return "00-" + trace + "-" + parent + "-" + std::string(flags);
}

Span sample() {
    return {.parent = *sampled_parent(traceparent("01")),
            .kind = SpanKind::producer,
            .name = "publish warehouse",
            .started_at = 1'700'000'000'123'456,
            .ended_at = 1'700'000'000'223'456};
}

Json::Value taken(SpanBuffer& buffer) {
    std::string request;
    buffer.take(request);
    return parse_json(request).value();
}

Json::Value spans_of(const Json::Value& request) {
    return request["resourceSpans"][0]["scopeSpans"][0]["spans"];
}

TEST(SampledParent, NeedsBitZeroOfTheFlags) {
    for (const char* flags : {"01", "03", "0b", "ff"})
        EXPECT_TRUE(sampled_parent(traceparent(flags))) << flags;
    for (const char* flags : {"00", "02", "10", "0a", "fe"})
        EXPECT_FALSE(sampled_parent(traceparent(flags))) << flags;
    EXPECT_FALSE(sampled_parent(""));
    EXPECT_FALSE(sampled_parent(traceparent("0")));
}

TEST(SpanBuffer, EncodesASpan) {
    SpanBuffer buffer("shop");
    const SpanAttribute attributes[] = {{"messaging.message.id", "7"}, {"attempts", 3}};
    Span span = sample();
    span.attributes = attributes;
    buffer.add(span);

    const Json::Value request = taken(buffer);
    const Json::Value& service = request["resourceSpans"][0]["resource"]["attributes"][0];
    EXPECT_EQ(service["key"], "service.name");
    EXPECT_EQ(service["value"]["stringValue"], "shop");

    const Json::Value encoded = spans_of(request)[0];
    EXPECT_EQ(encoded["traceId"], trace);
    EXPECT_EQ(encoded["parentSpanId"], parent);
    EXPECT_EQ(encoded["spanId"].asString().size(), 16u);
    EXPECT_EQ(encoded["kind"], 4);
    EXPECT_EQ(encoded["name"], "publish warehouse");
    EXPECT_EQ(encoded["startTimeUnixNano"], "1700000000123456000");
    EXPECT_EQ(encoded["endTimeUnixNano"], "1700000000223456000");
    EXPECT_EQ(encoded["attributes"][0]["value"]["stringValue"], "7");
    EXPECT_EQ(encoded["attributes"][1]["value"]["intValue"], "3");
    EXPECT_FALSE(encoded.isMember("status"));
}

TEST(SpanBuffer, EncodesAnErrorWithAnyBytes) {
    SpanBuffer buffer("shop");
    Span span = sample();
    span.error = "HTTP 500: \"\x01\xff\n";
    buffer.add(span);
    const Json::Value status = spans_of(taken(buffer))[0]["status"];
    EXPECT_EQ(status["code"], 2);
    EXPECT_EQ(status["message"], "HTTP 500: \"\x01\xef\xbf\xbd\n");
}

TEST(SpanBuffer, TimesFitAndDoNotGoBackwards) {
    SpanBuffer buffer("shop");
    Span span = sample();
    span.ended_at = span.started_at - 1;
    buffer.add(span);
    span.started_at = span.ended_at = 253'402'300'799'000'000;  // the year 9999
    buffer.add(span);
    span.started_at = span.ended_at = -1;
    buffer.add(span);
    const Json::Value spans = spans_of(taken(buffer));
    EXPECT_EQ(spans[0]["endTimeUnixNano"], spans[0]["startTimeUnixNano"]);
    EXPECT_EQ(spans[1]["startTimeUnixNano"], "9223372036854775000");
    EXPECT_EQ(spans[2]["startTimeUnixNano"], "0");
}

TEST(SpanBuffer, IdsDiffer) {
    SpanBuffer buffer("shop"), other("shop");
    std::set<std::string> ids;
    for (int i = 0; i < 500; i++) {
        buffer.add(sample());
        other.add(sample());
    }
    for (SpanBuffer* each : {&buffer, &other})
        for (const Json::Value& span : spans_of(taken(*each)))
            ids.insert(span["spanId"].asString());
    EXPECT_EQ(ids.size(), 1000u);
}

TEST(SpanBuffer, DropsAndCountsWhatHasNoRoom) {
    SpanBuffer buffer("shop", 4000);
    while (buffer.dropped() == 0)
        buffer.add(sample());
    const std::size_t kept = buffer.spans();
    EXPECT_GT(kept, 1u);
    EXPECT_EQ(spans_of(taken(buffer)).size(), kept);
    EXPECT_TRUE(buffer.empty());

    buffer.add(sample());  // there is room again
    EXPECT_EQ(buffer.spans(), 1u);
    EXPECT_EQ(buffer.dropped(), 1u);
}

// add() is noexcept, so an allocation that fails would end the process.
TEST(SpanBuffer, AddsWithoutMemory) {
    const std::string worst(300, '\x01');
    SpanBuffer buffer("shop", 100'000);
    std::vector<SpanAttribute> attributes(5, SpanAttribute{worst, worst});
    attributes.push_back({worst, std::numeric_limits<std::int64_t>::min()});
    Span span = sample();
    span.name = span.error = worst;
    span.attributes = attributes;
    allocations_until_failure = 0;
    while (buffer.dropped() == 0)
        buffer.add(span);
    EXPECT_FALSE(allocation_failed());
    const std::size_t kept = buffer.spans();
    EXPECT_GT(kept, 1u);
    EXPECT_EQ(spans_of(taken(buffer)).size(), kept);
}

}  // namespace
}  // namespace outbox
