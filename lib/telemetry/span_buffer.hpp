// Spans of OpenTelemetry that wait to be sent, encoded as JSON for OTLP/HTTP
// (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).
//
// Spans must not delay or stop what they describe: the buffer never grows, and a span for which
// there is no room is dropped and counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "core/clock.hpp"

namespace outbox {

// The span of the application. All spans of an event are its children, because the context that is
// sent on with the event stays unchanged.
struct SpanParent {
    std::array<char, 32> trace_id;  // hexadecimal digits, as OTLP writes ids in JSON
    std::array<char, 16> span_id;
};

// Returns std::nullopt if `traceparent` is not valid, or its trace is not sampled.
std::optional<SpanParent> sampled_parent(std::string_view traceparent) noexcept;

enum class SpanKind { internal = 1, producer = 4, consumer = 5 };

struct SpanAttribute {
    std::string_view name;
    std::variant<std::string_view, std::int64_t> value;
};

struct Span {
    SpanParent parent;
    SpanKind kind = SpanKind::internal;
    std::string_view name;
    Micros started_at = 0;  // microseconds since the Unix epoch
    Micros ended_at = 0;
    std::span<const SpanAttribute> attributes{};
    std::string_view error{};  // empty if it succeeded
};

// Not thread-safe. A process that forks must not go on with its parent's buffer: both would use the
// same ids.
class SpanBuffer {
  public:
    static constexpr std::size_t usual_bytes = 512 * 1024;

    // Allocates `max_bytes`, and may throw std::bad_alloc. `service` is the attribute service.name.
    explicit SpanBuffer(std::string_view service, std::size_t max_bytes = usual_bytes);

    void add(const Span& span) noexcept;
    bool empty() const noexcept { return spans_ == 0; }
    std::size_t spans() const noexcept { return spans_; }
    bool is_half_full() const noexcept { return encoded_.size() > max_bytes_ / 2; }
    std::uint64_t dropped() const noexcept { return dropped_; }

    // Writes the body of a request with all spans into `request`, and empties the buffer. Throws
    // std::bad_alloc with the spans still in the buffer.
    void take(std::string& request);

  private:
    void append_span_id();

    const std::size_t max_bytes_;
    std::string beginning_;  // of a request, up to the spans
    std::string encoded_;    // the spans, with commas between them
    std::size_t spans_ = 0;
    std::uint64_t dropped_ = 0;
    std::mt19937_64 random_;
};

}  // namespace outbox
