#include "sinks/traced_sink.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/text.hpp"
#include "sinks/span_exporter.hpp"

namespace outbox {

namespace {

constexpr std::size_t max_error = 300;
constexpr Micros between_lines = seconds(60);

// OpenTelemetry's semantic conventions for messaging, 1.30.
std::string_view system_of(std::string_view scheme) {
    return scheme == "pubsub"                               ? "gcp_pubsub"
           : scheme == "sqs"                                ? "aws_sqs"
           : scheme == "sns"                                ? "aws.sns"
           : scheme == "kinesis"                            ? "aws.kinesis"
           : scheme == "eventbridge"                        ? "aws.eventbridge"
           : scheme == "kafka" || scheme == "kafkas"        ? "kafka"
           : scheme == "mqtts"                              ? "mqtt"
           : scheme == "nats" || scheme == "tls"            ? "nats"
           : scheme == "amqp" || scheme == "amqps"          ? "rabbitmq"
           : scheme == "redis" || scheme == "rediss"        ? "redis"
           : scheme == "postgres" || scheme == "postgresql" ? "postgresql"
                                                            : scheme;
}

std::string_view name_of(Fate fate) {
    switch (fate) {
        case Fate::throttled:
            return "throttled";
        case Fate::unavailable:
            return "unavailable";
        case Fate::refused:
            return "refused";
        default:
            return "failed";
    }
}

std::optional<SpanParent> parent_of(const Event& event) {
    for (const Header& header : event.headers)
        if (header.name == "traceparent")
            return sampled_parent(header.value);
    return std::nullopt;
}

class TracedSink final : public Sink {
  public:
    TracedSink(std::unique_ptr<Sink> sink, const Tracing& tracing, const SinkContext& context)
        : clock_(context.clock),
          destination_(context.destination.name),
          system_(system_of(context.destination.url.scheme)),
          sink_(std::move(sink)),
          ready_(epoll_create1(EPOLL_CLOEXEC)) {
        Result<std::unique_ptr<SpanExporter>> exporter =
            SpanExporter::create(tracing, context.clock);
        if (exporter)
            exporter_ = std::move(exporter.value());
        else
            complaint_ = exporter.error().message;
        watch(sink_->descriptor());
        if (exporter_ != nullptr)
            watch(exporter_->descriptor());
    }

    ~TracedSink() override {
        if (ready_ >= 0)
            close(ready_);
    }

    Capabilities capabilities() const noexcept override { return sink_->capabilities(); }
    std::size_t size_of(const Event& event) const noexcept override {
        return sink_->size_of(event);
    }
    void lane_of(const Event& event, std::string& lane) const override {
        sink_->lane_of(event, lane);
    }
    Transactions* transactions() noexcept override { return sink_->transactions(); }
    Endpoints* endpoints() noexcept override { return sink_->endpoints(); }

    int descriptor() const noexcept override { return ready_; }
    Micros deadline() const noexcept override {
        return std::min(sink_->deadline(), exporter_ != nullptr ? exporter_->deadline() : never);
    }

    void submit(Batch& batch) override {
        sent_at_[&batch] = clock_.now();
        sink_->submit(batch);
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        const std::size_t known = outcomes.size();
        sink_->step(now, outcomes);
        for (std::size_t i = known; i < outcomes.size(); i++)
            ended(outcomes[i], now);
        if (exporter_ != nullptr)
            exporter_->step(now);
    }

    bool report(SinkReport& report) override {
        const bool has_figures = sink_->report(report);
        if (!has_figures)
            report.lines.clear();
        complain(report.lines);
        return has_figures;
    }

  private:
    void watch(int descriptor) noexcept {
        epoll_event event{};
        event.events = EPOLLIN;
        if (descriptor >= 0)
            epoll_ctl(ready_, EPOLL_CTL_ADD, descriptor, &event);
    }

    void ended(const Outcome& outcome, Micros now) {
        const auto sent = sent_at_.find(outcome.batch);
        const Micros took = sent != sent_at_.end() ? now - sent->second : 0;
        if (sent != sent_at_.end())
            sent_at_.erase(sent);
        if (exporter_ == nullptr)
            return;
        const Micros unix_now = clock_.unix_now();
        const std::vector<Event*>& events = outcome.batch->events;
        for (std::size_t i = 0; i < events.size(); i++) {
            const bool own = i < outcome.of_events.size();
            const Fate fate = own ? outcome.of_events[i].fate : outcome.fate;
            const std::string& error = own ? outcome.of_events[i].error : outcome.error;
            if (fate != Fate::undone)
                add_span(*events[i], fate, error, unix_now - took, unix_now);
        }
    }

    void add_span(const Event& event, Fate fate, const std::string& error, Micros from, Micros to) {
        const std::optional<SpanParent> parent = parent_of(event);
        if (!parent)
            return;
        const bool failed = fate != Fate::confirmed;
        id_.clear();
        append_uuid(id_, event.event_id);
        name_.assign("send ").append(event.topic);
        const std::array attributes{SpanAttribute{"messaging.system", system_},
                                    SpanAttribute{"messaging.operation.type", "send"},
                                    SpanAttribute{"messaging.destination.name", event.topic},
                                    SpanAttribute{"messaging.message.id", id_},
                                    SpanAttribute{"outbox.destination", destination_},
                                    SpanAttribute{"error.type", name_of(fate)}};
        error_ = failed ? printable(error.empty() ? name_of(fate) : error, max_error) : "";
        exporter_->add({.parent = *parent,
                        .kind = SpanKind::producer,
                        .name = name_,
                        .started_at = from,
                        .ended_at = to,
                        .attributes = {attributes.data(), attributes.size() - (failed ? 0 : 1)},
                        .error = error_});
    }

    // At most a line a minute.
    void complain(std::vector<std::string>& lines) {
        const Micros now = clock_.now();
        const std::uint64_t lost = exporter_ != nullptr ? exporter_->lost() : 0;
        if (now < complains_at_ || (complaint_.empty() && lost == lost_told_))
            return;
        complains_at_ = now + between_lines;
        if (!complaint_.empty()) {
            lines.push_back("tracing: no spans are sent: " + std::exchange(complaint_, ""));
            return;
        }
        const std::string& error = exporter_->error();
        lines.push_back(
            "tracing: spans lost: " + std::to_string(lost - std::exchange(lost_told_, lost)) +
            (error.empty() ? "" : " (" + error + ")"));
    }

    const Clock& clock_;
    const std::string destination_;
    const std::string_view system_;
    std::unique_ptr<Sink> sink_;
    std::unique_ptr<SpanExporter> exporter_;
    const int ready_;
    std::unordered_map<const Batch*, Micros> sent_at_;
    std::string complaint_;
    std::uint64_t lost_told_ = 0;
    Micros complains_at_ = 0;
    std::string id_, name_, error_;  // scratch space
};

}  // namespace

std::unique_ptr<Sink> traced(std::unique_ptr<Sink> sink, const Tracing& tracing,
                             const SinkContext& context) {
    if (tracing.endpoint.empty())
        return sink;
    return std::make_unique<TracedSink>(std::move(sink), tracing, context);
}

}  // namespace outbox
