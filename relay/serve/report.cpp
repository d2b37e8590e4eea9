#include "relay/serve/report.hpp"

#include <span>
#include <utility>

#include "core/text.hpp"

namespace outbox::relay {

namespace {

class Members {
  public:
    explicit Members(std::string& out) : out_(out) { out_ += '{'; }
    ~Members() { out_ += '}'; }

    void add(std::string_view name, std::string_view text) {
        separate();
        append_json_member(out_, name, text);
    }
    void add(std::string_view name, std::int64_t number) {
        separate();
        append_json_string(out_, name);
        out_ += ':';
        append_integer(out_, number);
    }
    void add_count(std::string_view name, std::uint64_t number) {
        add(name, static_cast<std::int64_t>(number));
    }
    void add_time(std::string_view name, Micros time) {
        std::string text;
        append_timestamp(text, time);
        add(name, text);
    }
    void add_array(std::string_view name, std::span<const std::uint64_t> numbers) {
        separate();
        append_json_string(out_, name);
        char before = '[';
        out_ += ':';
        for (const std::uint64_t number : numbers) {
            out_ += std::exchange(before, ',');
            append_integer(out_, static_cast<std::int64_t>(number));
        }
        out_ += ']';
    }
    void add_interval(std::string_view name, const std::optional<Micros>& length) {
        if (length)
            add(name, std::to_string(*length) + " microseconds");
    }

  private:
    void separate() {
        if (any_)
            out_ += ',';
        any_ = true;
    }

    std::string& out_;
    bool any_ = false;
};

}  // namespace

void append_report(std::string& out, const Report& report) {
    const DestinationFigures& figures = report.figures;
    Members members(out);
    members.add("number", std::int64_t{report.number});
    members.add("state", figures.state);
    members.add_time("state_since", report.state_since);
    members.add_count("delivered", figures.published);
    members.add_count("failures", figures.failures);
    members.add_count("unsettled", figures.in_flight);
    members.add_count("held_keys", figures.held_keys);
    if (report.read_to > 0)
        members.add("read_to", std::to_string(report.read_to));
    if (report.oldest)
        members.add_time("oldest_unsettled", *report.oldest);
    members.add("settled_position", figures.position);
    members.add_interval("latency_p50", figures.latency_p50);
    members.add_interval("latency_p99", figures.latency_p99);
    members.add_array("latency_buckets", figures.latencies.up_to);
    members.add("latency_sum", std::to_string(static_cast<double>(figures.latencies.sum) / 1e6));
    if (!report.last_error.empty()) {
        members.add("last_error", printable(report.last_error));
        if (report.last_error_at > 0)
            members.add_time("last_error_at", report.last_error_at);
    }
    members.add_count("throttled", figures.throttled);
    if (figures.request_limit)
        members.add("request_limit", std::to_string(*figures.request_limit));
    members.add_count("suspects", figures.suspects);
    members.add_count("lanes_down", figures.lanes_down);
    members.add_interval("round_trip_p50", figures.round_trip_p50);
    members.add_interval("round_trip_p99", figures.round_trip_p99);
    if (figures.client_queue)
        members.add_count("client_queue", *figures.client_queue);
    if (figures.connects)
        members.add_count("connects", *figures.connects);
    if (figures.disconnects)
        members.add_count("disconnects", *figures.disconnects);
    if (figures.failing_since > 0)
        members.add_time("failing_since", figures.failing_since);
    if (figures.next_attempt > 0)
        members.add_time("next_attempt_at", figures.next_attempt);
}

}  // namespace outbox::relay
