#include "telemetry/span_buffer.hpp"

#include <algorithm>
#include <limits>

#include "core/text.hpp"
#include "core/trace_context.hpp"

namespace outbox {

static constexpr std::string_view request_end = "]}]}]}";

std::optional<SpanParent> sampled_parent(std::string_view traceparent) noexcept {
    if (!is_traceparent(traceparent))
        return std::nullopt;
    // The last digit of the flags holds bit 0, which means sampled.
    const char last = traceparent.back();
    if ((last >= 'a' ? last - 'a' + 10 : last - '0') % 2 == 0)
        return std::nullopt;
    SpanParent parent;
    traceparent.copy(parent.trace_id.data(), parent.trace_id.size(), 3);
    traceparent.copy(parent.span_id.data(), parent.span_id.size(), 36);
    return parent;
}

// Returns a bound for the encoded span, so that add() never reallocates.
static std::size_t max_encoded(const Span& span) {
    constexpr std::size_t fixed = 400, per_attribute = 80;
    constexpr std::size_t escaped = 6;  // "\u0001" for one byte
    std::size_t texts = span.name.size() + span.error.size();
    for (const SpanAttribute& attribute : span.attributes) {
        texts += attribute.name.size();
        if (const auto* text = std::get_if<std::string_view>(&attribute.value))
            texts += text->size();
    }
    return fixed + span.attributes.size() * per_attribute + texts * escaped;
}

static void append_attribute(std::string& out, const SpanAttribute& attribute) {
    out += '{';
    append_json_member(out, "key", attribute.name);
    out += R"(,"value":{)";
    if (const auto* text = std::get_if<std::string_view>(&attribute.value)) {
        append_json_member(out, "stringValue", *text);
    } else {
        out += R"("intValue":")";  // JSON of protobuf writes 64-bit numbers as strings
        append_integer(out, std::get<std::int64_t>(attribute.value));
        out += '"';
    }
    out += "}}";
}

static void append_nanoseconds(std::string& out, std::string_view name, Micros time) {
    // An event may be of the year 9999, but nanoseconds in 64 bits end in 2262.
    constexpr Micros latest = std::numeric_limits<std::int64_t>::max() / 1000;
    out += name;
    append_integer(out, std::clamp<Micros>(time, 0, latest) * 1000);
    out += '"';
}

// A seed of 32 bits, which is what one call returns, would soon repeat among many processes.
static std::uint64_t random_seed() {
    std::random_device device;
    const std::uint64_t high = device();
    return high << 32 | device();
}

SpanBuffer::SpanBuffer(std::string_view service, std::size_t max_bytes)
    : max_bytes_(max_bytes), random_(random_seed()) {
    beginning_ = R"({"resourceSpans":[{"resource":{"attributes":[)";
    append_attribute(beginning_, {"service.name", service});
    beginning_ += R"(]},"scopeSpans":[{"scope":{"name":"pg_outbox"},"spans":[)";
    encoded_.reserve(max_bytes);
}

void SpanBuffer::append_span_id() {
    static constexpr char digits[] = "0123456789abcdef";
    std::uint64_t id = random_();
    while (id == 0)  // means "no span"
        id = random_();
    for (int shift = 60; shift >= 0; shift -= 4)
        encoded_ += digits[id >> shift & 15];
}

void SpanBuffer::add(const Span& span) noexcept {
    if (max_encoded(span) > max_bytes_ - encoded_.size()) {
        dropped_++;
        return;
    }
    if (spans_ > 0)
        encoded_ += ',';
    encoded_ += R"({"traceId":")";
    encoded_.append(span.parent.trace_id.data(), span.parent.trace_id.size());
    encoded_ += R"(","spanId":")";
    append_span_id();
    encoded_ += R"(","parentSpanId":")";
    encoded_.append(span.parent.span_id.data(), span.parent.span_id.size());
    encoded_ += R"(","kind":)";
    append_integer(encoded_, static_cast<int>(span.kind));
    encoded_ += ',';
    append_json_member(encoded_, "name", span.name);
    append_nanoseconds(encoded_, R"(,"startTimeUnixNano":")", span.started_at);
    // Clocks of two machines may differ. A span must not end before it starts.
    append_nanoseconds(encoded_, R"(,"endTimeUnixNano":")",
                       std::max(span.started_at, span.ended_at));
    encoded_ += R"(,"attributes":[)";
    for (const SpanAttribute& attribute : span.attributes) {
        if (&attribute != span.attributes.data())
            encoded_ += ',';
        append_attribute(encoded_, attribute);
    }
    encoded_ += ']';
    if (!span.error.empty()) {
        encoded_ += R"(,"status":{"code":2,)";
        append_json_member(encoded_, "message", span.error);
        encoded_ += '}';
    }
    encoded_ += '}';
    spans_++;
}

void SpanBuffer::take(std::string& request) {
    request.clear();
    request.reserve(beginning_.size() + encoded_.size() + request_end.size());
    request += beginning_;
    request += encoded_;
    request += request_end;
    encoded_.clear();  // keeps its memory
    spans_ = 0;
}

}  // namespace outbox
