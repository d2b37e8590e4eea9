// Sends spans to a collector, as OTLP/HTTP. The http sink does it: a request with spans is an event
// to it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/sink.hpp"
#include "telemetry/span_buffer.hpp"
#include "telemetry/tracing.hpp"

namespace outbox {

// Returns std::nullopt if spans can be sent to this URL.
std::optional<Error> check_endpoint(std::string_view url);

// One request at a time, at most one a second unless the buffer is half full. Spans of a request that
// fails are lost and counted: a collector that is away must not cost more than one that is there.
class SpanExporter {
  public:
    static Result<std::unique_ptr<SpanExporter>> create(const Tracing& tracing, const Clock& clock);
    SpanExporter(const SpanExporter&) = delete;
    SpanExporter& operator=(const SpanExporter&) = delete;

    void add(const Span& span) noexcept { spans_.add(span); }

    int descriptor() const noexcept { return sink_->descriptor(); }
    Micros deadline() const noexcept;
    void step(Micros now);

    std::uint64_t lost() const noexcept { return lost_ + spans_.dropped(); }
    // Returns why the last request failed, or an empty string.
    const std::string& error() const noexcept { return error_; }

  private:
    SpanExporter() : spans_("pg_outbox") {}
    void send();
    void ended(const Outcome& outcome, Micros now);

    Destination destination_;
    std::unique_ptr<Sink> sink_;  // must go before the destination and the batch
    SpanBuffer spans_;
    std::string request_;
    Event event_;
    Batch batch_;
    std::size_t under_way_ = 0;  // spans in the request under way
    bool is_sending_ = false;
    Micros again_at_ = 0;  // the next request
    std::uint64_t lost_ = 0;
    std::string error_;
    std::vector<Outcome> outcomes_;
};

}  // namespace outbox
