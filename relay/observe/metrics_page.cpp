#include <cmath>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "relay/observe/pages.hpp"

namespace outbox::relay {

namespace {

std::string number(double value) {
    char text[40];
    // Counters are exact up to 2^53.
    std::snprintf(text, sizeof text, value == std::floor(value) ? "%.0f" : "%.6f", value);
    return text;
}

std::string label(std::string_view name, std::string_view value) {
    std::string text(name);
    text += "=\"";
    for (char c : value)
        if (c == '\\' || c == '"')
            (text += '\\') += c;
        else if (c == '\n')
            text += "\\n";
        else
            text += c;
    return text + '"';
}

std::optional<double> in_seconds(const std::optional<Micros>& duration) {
    return duration ? std::optional(static_cast<double>(*duration) / 1e6) : std::nullopt;
}

template <class Number>
std::optional<double> maybe(const std::optional<Number>& value) {
    return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

// As OpenMetrics writes numbers: 0.0025, 1.0, +Inf.
std::string bound(std::size_t bucket) {
    if (bucket == LatencyBuckets::bounds.size())
        return "+Inf";
    char text[40];
    std::snprintf(text, sizeof text, "%g",
                  static_cast<double>(LatencyBuckets::bounds[bucket]) / 1e6);
    std::string shortest = text;
    return shortest.find('.') == std::string::npos ? shortest + ".0" : shortest;
}

class Page {
  public:
    void begin(std::string_view name, std::string_view type, std::string_view help) {
        name_ = name;
        is_counter_ = type == "counter";
        head_ = "# TYPE " + name_ + ' ' + std::string(type) + "\n# HELP " + name_ + ' ' +
                std::string(help) + '\n';
    }
    // Samples without a value are left out, and so is a family without samples.
    void add(const std::string& labels, const std::optional<double>& value) {
        if (!value || !std::isfinite(*value))
            return;
        text_ += std::exchange(head_, "");
        text_ += name_ + (is_counter_ ? "_total" : "");
        if (!labels.empty())
            text_ += '{' + labels + '}';
        text_ += ' ' + number(*value) + '\n';
    }
    void add_histogram(const std::string& labels, const LatencyBuckets::Figures& latencies) {
        text_ += std::exchange(head_, "");
        for (std::size_t i = 0; i < LatencyBuckets::count; i++)
            text_ += name_ + "_bucket{" + labels + ",le=\"" + bound(i) + "\"} " +
                     std::to_string(latencies.up_to[i]) + '\n';
        text_ += name_ + "_count{" + labels + "} " + std::to_string(latencies.up_to.back()) + '\n';
        text_ += name_ + "_sum{" + labels + "} " +
                 number(static_cast<double>(latencies.sum) / 1e6) + '\n';
    }
    std::string end() { return std::move(text_) + "# EOF\n"; }

  private:
    std::string text_, head_, name_;
    bool is_counter_ = false;
};

// -------------------------------------------------------------------------------------------------
// Destinations
// -------------------------------------------------------------------------------------------------

struct DestinationFamily {
    std::string_view name, type, help, more_labels;
    std::function<std::optional<double>(const DestinationFigures&)> value;
};

template <class Number>
auto figure(Number DestinationFigures::*member) {
    return [member](const DestinationFigures& of) { return std::optional<double>(of.*member); };
}

bool takes_events(const DestinationFigures& of) {
    return of.state == "idle" || of.state == "delivering" || of.state == "throttled";
}

const std::vector<DestinationFamily>& destination_families() {
    using D = DestinationFigures;
    constexpr std::string_view latency =
        "From occurred_at to the confirmation, of the last minutes.";
    constexpr std::string_view round_trip = "From a request to its answer, of the last minutes.";
    static const std::vector<DestinationFamily> families{
        {"outbox_up", "gauge", "Whether the destination takes events.", "",
         [](const D& of) { return takes_events(of) ? 1.0 : 0.0; }},
        {"outbox_published", "counter", "Events that the destination has confirmed.", "",
         figure(&D::published)},
        {"outbox_published_bytes", "counter", "Bytes of their payloads.", "", figure(&D::bytes)},
        {"outbox_failures", "counter", "Attempts that failed.", "", figure(&D::failures)},
        {"outbox_in_flight", "gauge", "Events read from the log and not settled.", "",
         figure(&D::in_flight)},
        {"outbox_oldest_pending_seconds", "gauge", "Age of the oldest event not settled.", "",
         [](const D& of) { return in_seconds(of.oldest_pending_age); }},
        {"outbox_latency_seconds", "summary", latency, ",quantile=\"0.5\"",
         [](const D& of) { return in_seconds(of.latency_p50); }},
        {"outbox_latency_seconds", "summary", latency, ",quantile=\"0.99\"",
         [](const D& of) { return in_seconds(of.latency_p99); }},
        {"outbox_held_keys", "gauge", "Ordering keys that events in trouble hold.", "",
         figure(&D::held_keys)},
        {"outbox_throttled", "counter", "Answers that asked for fewer requests.", "",
         figure(&D::throttled)},
        {"outbox_request_limit", "gauge", "Requests a second, where fewer are asked for.", "",
         [](const D& of) { return of.request_limit; }},
        {"outbox_suspects", "gauge", "Events in memory whose last attempt failed, or hangs.", "",
         figure(&D::suspects)},
        {"outbox_lanes_down", "gauge", "Topics or queues of the destination that fail.", "",
         figure(&D::lanes_down)},
        {"outbox_client_queue", "gauge", "Events that the client library has, not confirmed.", "",
         [](const D& of) { return maybe(of.client_queue); }},
        {"outbox_connects", "counter", "Connections of the client library.", "",
         [](const D& of) { return maybe(of.connects); }},
        {"outbox_disconnects", "counter", "Connections of the client library that have ended.", "",
         [](const D& of) { return maybe(of.disconnects); }},
        {"outbox_round_trip_seconds", "summary", round_trip, ",quantile=\"0.5\"",
         [](const D& of) { return in_seconds(of.round_trip_p50); }},
        {"outbox_round_trip_seconds", "summary", round_trip, ",quantile=\"0.99\"",
         [](const D& of) { return in_seconds(of.round_trip_p99); }},
    };
    return families;
}

std::string labels_of(const DatabaseFigures& database, const DestinationFigures& destination) {
    return label("database", database.name) + ',' + label("destination", destination.name);
}

// A relay that only watches a destination has no figures of its deliveries.
void add_destinations(Page& page, const ProcessFigures& figures) {
    std::string_view last;
    for (const DestinationFamily& family : destination_families()) {
        if (family.name != std::exchange(last, family.name))
            page.begin(family.name, family.type, family.help);
        for (const DatabaseFigures& database : figures.databases)
            for (const DestinationFigures& destination : database.destinations)
                if (destination.held)
                    page.add(labels_of(database, destination) + std::string(family.more_labels),
                             family.value(destination));
    }
    page.begin("outbox_delivery_seconds", "histogram",
               "From occurred_at to the confirmation, without events that are delivered again.");
    for (const DatabaseFigures& database : figures.databases)
        for (const DestinationFigures& destination : database.destinations)
            if (destination.held)
                page.add_histogram(labels_of(database, destination), destination.latencies);
    page.begin("outbox_relay_lease_held", "gauge",
               "Whether this process serves the destination; 0 if another one does, or none.");
    for (const DatabaseFigures& database : figures.databases)
        for (const DestinationFigures& destination : database.destinations)
            page.add(labels_of(database, destination), destination.held ? 1 : 0);
}

// -------------------------------------------------------------------------------------------------
// Databases and the process
// -------------------------------------------------------------------------------------------------

struct DatabaseFamily {
    std::string_view name, type, help;
    std::function<std::optional<double>(const DatabaseFigures&, Micros now)> value;
};

template <class Number>
auto figure(Number DatabaseFigures::*member) {
    return [member](const DatabaseFigures& of, Micros) {
        return std::optional<double>(of.*member ? static_cast<double>(of.*member) : 0.0);
    };
}

const std::vector<DatabaseFamily>& database_families() {
    using D = DatabaseFigures;
    static const std::vector<DatabaseFamily> families{
        {"outbox_relay_ready", "gauge", "Whether the database is connected and the lease valid.",
         figure(&D::ready)},
        {"outbox_relay_resting", "gauge", "Whether it waits for a notification.",
         figure(&D::resting)},
        {"outbox_relay_connections", "gauge", "Open connections to the database.",
         figure(&D::connections)},
        {"outbox_relay_connects", "counter", "Connections to the database.", figure(&D::connects)},
        {"outbox_relay_disconnects", "counter",
         "Connections to the database that were lost or given up.", figure(&D::disconnects)},
        {"outbox_relay_statements", "counter", "Statements sent to the database.",
         figure(&D::statements)},
        {"outbox_relay_lease_renewals", "counter", "Renewals of the lease.", figure(&D::renewals)},
        {"outbox_relay_lease_age_seconds", "gauge", "Time since the lease was renewed.",
         [](const D& of, Micros now) {
             return of.renewed_at > 0 ? in_seconds(std::max<Micros>(now - of.renewed_at, 0))
                                      : std::nullopt;
         }},
        {"outbox_relay_takeovers", "counter", "Destinations that this process began to serve.",
         figure(&D::takeovers)},
        {"outbox_relay_lease_losses", "counter", "Destinations that this process lost to another.",
         figure(&D::losses)},
    };
    return families;
}

void add_databases(Page& page, const ProcessFigures& figures, Micros now) {
    for (const DatabaseFamily& family : database_families()) {
        page.begin(family.name, family.type, family.help);
        for (const DatabaseFigures& database : figures.databases)
            page.add(label("database", database.name), family.value(database, now));
    }
}

void add_process(Page& page, const ProcessFigures& figures, const PageContext& context) {
    page.begin("outbox_relay_up", "gauge", "The program, its version and its name.");
    page.add(label("version", context.version) + ',' + label("name", context.name), 1);
    page.begin("outbox_relay_uptime_seconds", "gauge", "Time since the process started.");
    page.add("", in_seconds(context.now - context.started_at));
    page.begin("outbox_relay_loop_turns", "counter", "Turns of the event loop.");
    page.add("", static_cast<double>(figures.turns));
    page.begin("outbox_relay_loop_age_seconds", "gauge", "Time since the last turn.");
    if (context.last_beat > 0)
        page.add("", in_seconds(std::max<Micros>(context.now - context.last_beat, 0)));
    page.begin("outbox_relay_stopping", "gauge",
               "Whether it finishes what is in flight, and ends.");
    page.add("", figures.stopping ? 1 : 0);
    page.begin("outbox_relay_dropped_log_lines", "counter", "Log lines that nobody read in time.");
    page.add("", static_cast<double>(context.dropped_log_lines));
}

}  // namespace

std::string metrics_page(const ProcessFigures& figures, const PageContext& context) {
    Page page;
    add_destinations(page, figures);
    add_databases(page, figures, context.now);
    add_process(page, figures, context);
    return page.end();
}

}  // namespace outbox::relay
