#include "core/text.hpp"
#include "relay/observe/pages.hpp"

namespace outbox::relay {

namespace {

// Writes one JSON object.
class Object {
  public:
    explicit Object(std::string& out) : out_(out) { out_ += '{'; }
    ~Object() { out_ += '}'; }
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;

    void name(std::string_view name) {
        out_ += first_ ? "" : ",";
        first_ = false;
        append_json_string(out_, name);
        out_ += ':';
    }
    void text(std::string_view key, std::string_view value) {
        name(key);
        append_json_string(out_, value);
    }
    void text_unless_empty(std::string_view key, std::string_view value) {
        if (!value.empty())
            text(key, value);
    }
    void number(std::string_view key, std::int64_t value) {
        name(key);
        append_integer(out_, value);
    }
    void count(std::string_view key, std::uint64_t value) {
        number(key, static_cast<std::int64_t>(value));
    }
    void toggle(std::string_view key, bool value) {
        name(key);
        out_ += value ? "true" : "false";
    }
    // In milliseconds; left out if there is none.
    void duration(std::string_view key, const std::optional<Micros>& value) {
        if (value)
            number(key, *value / 1000);
    }
    void maybe(std::string_view key, const std::optional<std::uint64_t>& value) {
        if (value)
            count(key, *value);
    }

  private:
    std::string& out_;
    bool first_ = true;
};

template <class Things, class Write>
void append_list(std::string& out, const Things& things, Write write) {
    out += '[';
    bool first = true;
    for (const auto& thing : things) {
        out += first ? "" : ",";
        first = false;
        write(out, thing);
    }
    out += ']';
}

void append_destination(std::string& out, const DestinationFigures& of) {
    Object object(out);
    object.text("name", of.name);
    object.text("state", of.state);
    object.text_unless_empty("reason", printable(of.reason));
    object.toggle("held", of.held);
    if (!of.held)
        return;
    object.number("settled_position", of.position);
    object.count("published", of.published);
    object.count("published_bytes", of.bytes);
    object.count("failures", of.failures);
    object.count("throttled", of.throttled);
    object.count("in_flight", of.in_flight);
    object.count("held_keys", of.held_keys);
    object.count("suspects", of.suspects);
    object.count("lanes_down", of.lanes_down);
    if (of.request_limit)
        object.number("request_limit", static_cast<std::int64_t>(*of.request_limit));
    object.duration("oldest_pending_ms", of.oldest_pending_age);
    object.duration("latency_p50_ms", of.latency_p50);
    object.duration("latency_p99_ms", of.latency_p99);
    object.duration("round_trip_p50_ms", of.round_trip_p50);
    object.duration("round_trip_p99_ms", of.round_trip_p99);
    object.maybe("client_queue", of.client_queue);
    object.maybe("connects", of.connects);
    object.maybe("disconnects", of.disconnects);
}

void append_database(std::string& out, const DatabaseFigures& of, Micros now) {
    Object object(out);
    object.text("name", of.name);
    object.toggle("ready", of.ready);
    object.text_unless_empty("trouble", printable(of.trouble));
    object.text_unless_empty("edition", of.edition);
    object.text_unless_empty("version", of.version);
    object.toggle("pooled", of.pooled);
    object.toggle("resting", of.resting);
    object.count("connections", of.connections);
    object.count("connects", of.connects);
    object.count("disconnects", of.disconnects);
    object.count("statements", of.statements);
    object.count("lease_renewals", of.renewals);
    object.count("takeovers", of.takeovers);
    object.count("lease_losses", of.losses);
    if (of.renewed_at > 0)
        object.duration("lease_age_ms", now - of.renewed_at);
    object.name("destinations");
    append_list(out, of.destinations, append_destination);
}

}  // namespace

std::string why_not_ready(const ProcessFigures& figures) {
    if (figures.stopping)
        return "stopping\n";
    if (figures.databases.empty())
        return "starting\n";
    std::string reasons;
    for (const DatabaseFigures& database : figures.databases)
        if (!database.ready)
            reasons += printable(database.name) + ": " +
                       (database.trouble.empty() ? "not connected" : printable(database.trouble)) +
                       '\n';
    return reasons;
}

std::string status_page(const ProcessFigures& figures, const PageContext& context) {
    std::string out;
    {
        Object object(out);
        object.text("name", context.name);
        object.text("version", context.version);
        object.number("uptime_s", (context.now - context.started_at) / seconds(1));
        object.toggle("ready", why_not_ready(figures).empty());
        object.toggle("stopping", figures.stopping);
        object.count("loop_turns", figures.turns);
        if (context.last_beat > 0)
            object.duration("loop_age_ms", context.now - context.last_beat);
        object.name("databases");
        append_list(out, figures.databases, [&](std::string& to, const DatabaseFigures& database) {
            append_database(to, database, context.now);
        });
    }
    return out + '\n';
}

}  // namespace outbox::relay
