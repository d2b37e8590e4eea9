#include "sinks/span_exporter.hpp"

#include <algorithm>

#include "core/small_file.hpp"
#include "sinks/registry.hpp"
#include "sinks/sink_loader.hpp"

namespace outbox {

static constexpr Micros usual_pause = seconds(1);
static constexpr Micros pause_after_failure = seconds(5);

std::optional<Error> check_endpoint(std::string_view url) {
    const SinkDeclaration* sink = sink_of_url(url);
    if (sink == nullptr || sink->name != "http")
        return Error{ErrorKind::invalid_value, "spans are sent over HTTP", "",
                     "Write for example \"http://127.0.0.1:4318/v1/traces\"."};
    return validate_server_options({{"url", std::string(url)}});
}

Result<std::unique_ptr<SpanExporter>> SpanExporter::create(const Tracing& tracing,
                                                           const Clock& clock) {
    // The administrator has set the URL, so allowed_hosts does not apply.
    DestinationDefaults defaults;
    defaults.request_timeout = seconds(10);
    defaults.allowed_hosts = "0.0.0.0/0, ::/0";
    std::vector<Option> secrets;
    if (!tracing.headers_file.empty()) {
        Result<std::string> headers = read_small_file(tracing.headers_file);
        if (!headers)
            return headers.error();
        secrets.push_back({"headers", std::move(headers.value())});
    }
    Result<Destination> destination =
        parse_destination("tracing", {{"url", tracing.endpoint}, {"max_connections", "1"}},
                          std::move(secrets), defaults);
    if (!destination)
        return destination.error();
    std::unique_ptr<SpanExporter> exporter(new SpanExporter);
    exporter->destination_ = std::move(destination.value());
    Result<std::unique_ptr<Sink>> sink = create_sink({exporter->destination_, clock});
    if (!sink)
        return sink.error();
    exporter->sink_ = std::move(sink.value());
    return exporter;
}

Micros SpanExporter::deadline() const noexcept {
    const bool waits = !is_sending_ && !spans_.empty();
    return std::min(sink_->deadline(), waits ? again_at_ : never);
}

void SpanExporter::step(Micros now) {
    outcomes_.clear();
    sink_->step(now, outcomes_);
    for (const Outcome& outcome : outcomes_)
        ended(outcome, now);
    const bool may_hurry = error_.empty() && spans_.is_half_full();
    if (!is_sending_ && !spans_.empty() && (now >= again_at_ || may_hurry))
        send();
}

void SpanExporter::send() {
    under_way_ = spans_.spans();
    spans_.take(request_);
    event_.topic = event_.event_type = event_.aggregate_type = "spans";
    event_.content_type = "application/json";
    event_.has_payload = true;
    event_.payload = request_;
    batch_.events = {&event_};
    is_sending_ = true;
    sink_->submit(batch_);
}

void SpanExporter::ended(const Outcome& outcome, Micros now) {
    is_sending_ = false;
    const bool failed = outcome.fate != Fate::confirmed;
    lost_ += failed ? under_way_ : 0;
    error_ = outcome.error;
    again_at_ = now + std::max(outcome.retry_after, failed ? pause_after_failure : usual_pause);
}

}  // namespace outbox
