#include "housekeeper.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "applier.hpp"
#include "text.hpp"

namespace inbox {

static constexpr int redriven_at_once = 100;

void Housekeeper::turn() {
    attempt("cannot look for resets", [this] { look_for_reset(); });
    if (has_unsaved())
        attempt("cannot save positions", [this] { save_positions(); });
    if (has_unreported())
        attempt("cannot report gaps", [this] { report_gaps(); });
    attempt("cannot report figures", [this] { report(receiver_.outstanding()); });
    attempt("cannot prune the window", [this] { prune(); });
    attempt("cannot apply redriven messages", [this] { take_redriven(); });
}

template <typename Task>
void Housekeeper::attempt(const char* what, Task task) {
    if (shared_.stop.raised())
        return;
    try {
        connect(shared_, connection_);
        task();
        failing_.erase(what);
    } catch (const DatabaseError& error) {
        connection_.reset();
        if (failing_.insert(what).second)
            shared_.log(Level::warning, std::string(what) + ": " + error.what() + " (SQLSTATE " +
                                            error.sqlstate() + ")");
    }
}

static Time time_of(std::string_view text) {
    std::int64_t micros = 0;
    std::from_chars(text.data(), text.data() + text.size(), micros);
    return Time{std::chrono::microseconds{micros}};
}

// ------------------------------------------------------------------------------------------------
// Resets
// ------------------------------------------------------------------------------------------------

void Housekeeper::look_for_reset() {
    const Result found = connection_->run(Whose::own,
                                          "SELECT reset_id, (extract(epoch FROM publish_time) * "
                                          "1000000)::bigint FROM inbox.load_offset($1, $2)",
                                          {shared_.options.name, shared_.subscription});
    resetting_ = found.rows() > 0 && !found.is_null(0, 0);
    if (!resetting_)
        return;
    if (!receiver_.seek(time_of(found.text(0, 1))))
        return;
    if (has_unsaved())
        save_positions();
    connection_->run(Whose::own, "SELECT inbox.confirm_reset($1, $2, $3::bigint, $4)",
                     {shared_.options.name, shared_.subscription, std::string(found.text(0, 0)),
                      shared_.instance});
    resetting_ = false;
    shared_.log(Level::info, "the offset was reset, and the source moved to it");
}

// ------------------------------------------------------------------------------------------------
// Positions
// ------------------------------------------------------------------------------------------------

// They are kept until they are saved.
bool Housekeeper::has_unsaved() {
    std::ranges::move(source_.moved_positions(), std::back_inserter(unsaved_));
    return !unsaved_.empty();
}

void Housekeeper::save_positions() {
    for (const Position& position : unsaved_)
        send_position(shared_, *connection_, position, shared_.instance);
    connection_->finish();
    unsaved_.clear();
}

void Housekeeper::finish() noexcept {
    try {
        if (has_unsaved()) {
            connect(shared_, connection_);
            save_positions();
        }
        if (has_unreported()) {
            connect(shared_, connection_);
            report_gaps();
        }
        report(0);
    } catch (const std::exception& error) {
        shared_.log(Level::warning,
                    std::string("cannot save positions and figures: ") + error.what());
    }
}

void save_positions(const Shared& shared, const std::vector<Position>& positions) {
    std::optional<Connection> connection;
    connect(shared, connection);
    for (const Position& position : positions)
        send_position(shared, *connection, position, shared.instance);
    connection->finish();
}

std::vector<Position> load_positions(const Shared& shared,
                                     const std::vector<std::string>& subscriptions) {
    std::optional<Connection> connection;
    const Result found = connect(shared, connection)
                             .run(Whose::own,
                                  "SELECT s, o.message_id, (extract(epoch FROM o.publish_time) * "
                                  "1000000)::bigint, coalesce(o.incarnation, '') "
                                  "FROM unnest($2::text[]) AS s, "
                                  "inbox.load_offset($1, s) AS o WHERE o.message_id IS NOT NULL",
                                  {shared.options.name, array_literal(subscriptions)});
    std::vector<Position> positions;
    for (int row = 0; row < found.rows(); row++)
        positions.push_back({std::string(found.text(row, 0)), std::string(found.text(row, 1)),
                             time_of(found.text(row, 2)), std::string(found.text(row, 3))});
    return positions;
}

// ------------------------------------------------------------------------------------------------
// Gaps
// ------------------------------------------------------------------------------------------------

// They are kept until they are reported.
bool Housekeeper::has_unreported() {
    for (Gap& gap : source_.gaps()) {
        shared_.counters.skipped += gap.skipped;
        shared_.counters.recreated += gap.recreated;
        unreported_.push_back(std::move(gap));
    }
    return !unreported_.empty();
}

void Housekeeper::report_gaps() {
    for (; !unreported_.empty(); unreported_.pop_front()) {
        const Gap& gap = unreported_.front();
        connection_->run(
            Whose::own, "SELECT inbox.report_gap($1, $2, $3, $4::bigint, $5::boolean, $6)",
            {shared_.options.name, gap.subscription, clean_utf8(gap.why),
             std::to_string(gap.skipped), gap.recreated ? "true" : "false",
             gap.incarnation.empty() ? std::nullopt : Parameter(clean_utf8(gap.incarnation))});
    }
}

// ------------------------------------------------------------------------------------------------
// Figures
// ------------------------------------------------------------------------------------------------

static Parameter interval(std::chrono::microseconds time) {
    return time.count() < 0 ? std::nullopt
                            : Parameter(std::to_string(time.count()) + " microseconds");
}

static std::string buckets(const outbox::LatencyBuckets::Figures& figures) {
    std::vector<std::string> numbers;
    for (const std::uint64_t number : figures.up_to)
        numbers.push_back(std::to_string(number));
    return array_literal(numbers);
}

// An idle consumer has nothing to report.
void Housekeeper::report(std::size_t outstanding) {
    Counters& counters = shared_.counters;
    const std::uint64_t settled = counters.settled;
    if (settled == counters.reported && outstanding == 0 && !shared_.reported_outstanding)
        return;
    std::chrono::microseconds p50{-1}, p99{-1};
    counters.recent_latencies.percentiles(p50, p99);
    const outbox::LatencyBuckets::Figures latencies = counters.latencies.figures();
    const outbox::LatencyBuckets::Figures more = latencies.since(counters.reported_latencies);
    connect(shared_, connection_);
    connection_->run(
        Whose::own,
        "SELECT inbox.report_progress($1, $2, $3::bigint, $4::bigint, $5::interval, "
        "$6::interval, $7::interval, $8::bigint[], $9::bigint / 1000000.0::double precision)",
        {shared_.options.name, shared_.instance, std::to_string(settled - counters.reported),
         std::to_string(outstanding), interval(p50), interval(p99),
         interval(shared_.options.housekeeping_interval), buckets(more), std::to_string(more.sum)});
    counters.reported = settled;
    counters.reported_latencies = latencies;
    shared_.reported_outstanding = outstanding > 0;
}

// Time-outs are for handlers: a bucket of the window may take longer to look through. Both statements
// are one transaction.
void Housekeeper::prune() {
    connection_->send(
        Whose::own,
        "SELECT pg_catalog.set_config(s.name, '0', true) FROM pg_catalog.pg_settings AS s "
        "WHERE s.name IN ('statement_timeout', 'transaction_timeout')");
    connection_->run(Whose::own, "SELECT inbox.prune()");
}

// ------------------------------------------------------------------------------------------------
// Redriven messages
// ------------------------------------------------------------------------------------------------

void Housekeeper::take_redriven() {
    while (!shared_.stop.raised()) {
        // Whatever the default is: claims of a later level would not see each other.
        connection_->send(Whose::own, "BEGIN ISOLATION LEVEL READ COMMITTED");
        const EventRows rows(connection_->run(
            Whose::own, "SELECT * FROM inbox.claim($1, $2::integer)",
            {shared_.options.name, std::to_string(redriven_at_once)}, Format::binary));
        connection_->run(Whose::own, "COMMIT");
        if (rows.count() == 0)
            return;
        for (int row = 0; row < rows.count(); row++)
            try_redriven(rows.uuid(row, "token"), rows.event(row));
    }
}

void Housekeeper::try_redriven(const std::string& token, const Event& event) {
    if (shared_.stop.raised()) {
        connection_->run(Whose::own, "SELECT inbox.release($1::uuid)", {token});
        return;
    }
    Failure failure;
    try {
        connection_->send(Whose::own, "BEGIN");
        const Result is_new = connection_->run(
            Whose::own, "SELECT inbox.complete($1::uuid, $2::uuid)", {token, event.id});
        if (is_new.text(0, 0) == "t")
            handle(shared_, *connection_, event);
        connection_->run(Whose::handler, "COMMIT");
        shared_.counters.applied += is_new.text(0, 0) == "t";
        return;
    } catch (const StatementError& error) {
        if (error.sqlstate() ==
            "IL001") {  // another consumer has it now, or an earlier event of its key failed
            connection_->roll_back();
            return;
        }
        failure = failure_of_event();
    } catch (...) {
        failure = failure_of_event();
    }
    connection_->roll_back();
    connection_->run(Whose::own,
                     "SELECT inbox.fail($1::uuid, $2::uuid, $3, $4, $5::boolean, $6, $7, $8)",
                     {token, event.id, clean_utf8(failure.error), failure.sqlstate,
                      failure.permanent ? "true" : "false", clean_utf8(failure.detail),
                      clean_utf8(failure.hint), clean_utf8(failure.context)});
    shared_.counters.failures++;
    shared_.log(Level::warning, "redriven event " + event.id + " failed: " + failure.error);
}

}  // namespace inbox
