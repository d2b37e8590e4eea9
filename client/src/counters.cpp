#include "counters.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

namespace inbox {

void RecentTimes::add(std::chrono::microseconds time) {
    const std::lock_guard lock(mutex_);
    times_[count_++ % times_.size()] = time;
}

void RecentTimes::percentiles(std::chrono::microseconds& p50,
                              std::chrono::microseconds& p99) const {
    std::vector<std::chrono::microseconds> sorted;
    {
        const std::lock_guard lock(mutex_);
        sorted.assign(times_.begin(), times_.begin() + std::min(count_, times_.size()));
    }
    if (sorted.empty())
        return;
    std::ranges::sort(sorted);
    p50 = sorted[(sorted.size() - 1) / 2];
    p99 = sorted[(sorted.size() - 1) * 99 / 100];
}

void Latencies::add(std::span<const std::chrono::microseconds> latencies) {
    const std::lock_guard lock(mutex_);
    for (const std::chrono::microseconds latency : latencies)
        buckets_.add(latency.count());
}

outbox::LatencyBuckets::Figures Latencies::figures() const {
    const std::lock_guard lock(mutex_);
    return buckets_.figures();
}

ConsumerMetrics Counters::snapshot() const {
    ConsumerMetrics metrics;
    // Results are read before their causes, so that no snapshot has a result without its cause.
    metrics.acked = acked;
    metrics.nacked = nacked;
    metrics.dead = dead;
    metrics.failures = failures;
    metrics.transactions = transactions;
    metrics.applied = applied;
    metrics.duplicates = duplicates;
    metrics.received = received;
    metrics.in_doubt = in_doubt;
    metrics.database_reconnects = database_reconnects;
    metrics.source_reconnects = source_reconnects;
    metrics.skipped = skipped;
    metrics.recreated = recreated;
    metrics.lag = std::chrono::milliseconds{lag_ms.load()};
    times.percentiles(metrics.apply_p50, metrics.apply_p99);
    return metrics;
}

static std::string label_value(std::string_view text) {
    std::string escaped;
    for (const char c : text) {
        if (c == '\\' || c == '"')
            escaped += '\\';
        if (c == '\n')
            escaped += "\\n";
        else
            escaped += c;
    }
    return escaped;
}

namespace {

class OpenMetrics {
  public:
    explicit OpenMetrics(const std::string& consumer)
        : label_("consumer=\"" + label_value(consumer) + '"') {}

    void counter(std::string_view name, std::string_view help, std::uint64_t value) {
        describe(name, "counter", help);
        sample(name, "_total", {}, std::to_string(value));
    }
    void gauge(std::string_view name, std::string_view help, std::string value) {
        describe(name, "gauge", help);
        sample(name, {}, {}, std::move(value));
    }
    void quantiles(std::string_view name, std::string_view help, std::chrono::microseconds p50,
                   std::chrono::microseconds p99) {
        describe(name, "summary", help);
        sample(name, {}, ",quantile=\"0.5\"", seconds(p50));
        sample(name, {}, ",quantile=\"0.99\"", seconds(p99));
    }
    static std::string seconds(std::chrono::microseconds time) {
        return std::to_string(std::chrono::duration<double>(time).count());
    }
    std::string text() const { return text_ + "# EOF\n"; }

  private:
    void describe(std::string_view name, std::string_view type, std::string_view help) {
        text_.append("# TYPE inbox_")
            .append(name)
            .append(" ")
            .append(type)
            .append("\n# HELP inbox_");
        text_.append(name).append(" ").append(help).append("\n");
    }
    void sample(std::string_view name, std::string_view suffix, std::string_view more,
                std::string value) {
        text_.append("inbox_").append(name).append(suffix).append("{").append(label_).append(more);
        text_.append("} ").append(value).append("\n");
    }

    std::string label_;
    std::string text_;
};

}  // namespace

std::string open_metrics(const ConsumerMetrics& m, const std::string& consumer) {
    OpenMetrics out(consumer);
    out.counter("received", "Deliveries, repetitions included.", m.received);
    out.counter("applied", "Events handled and committed.", m.applied);
    out.counter("duplicates", "Deliveries of events that were applied already.", m.duplicates);
    out.counter("failures", "Attempts of a handler that failed.", m.failures);
    out.counter("dead", "Events that became dead letters.", m.dead);
    out.counter("acked", "Deliveries acknowledged to the source.", m.acked);
    out.counter("nacked", "Deliveries given back to the source.", m.nacked);
    out.counter("transactions", "Transactions committed.", m.transactions);
    out.counter("in_doubt", "Commits whose answer was lost.", m.in_doubt);
    out.counter("database_reconnects", "Reconnections to the database.", m.database_reconnects);
    out.counter("source_reconnects", "Reopenings of the source.", m.source_reconnects);
    out.counter("skipped", "Events that can no longer be received from the source.", m.skipped);
    out.counter("recreated", "Times that the source was made again or cut back.", m.recreated);
    out.gauge("outstanding_messages", "Deliveries received and not settled.",
              std::to_string(m.outstanding_messages));
    out.gauge("outstanding_bytes", "Bytes of deliveries received and not settled.",
              std::to_string(m.outstanding_bytes));
    out.gauge("lag_seconds", "From published to committed, of the last event.",
              OpenMetrics::seconds(m.lag));
    out.quantiles("apply_seconds", "Time of a batch, from its start to its commit.", m.apply_p50,
                  m.apply_p99);
    return out.text();
}

}  // namespace inbox
