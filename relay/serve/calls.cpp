#include "relay/serve/calls.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/endpoint_answer.hpp"
#include "core/position_ranges.hpp"
#include "core/powerful_role.hpp"
#include "relay/database/event_rows.hpp"
#include "sinks/postgresql/binary_arrays.hpp"

namespace outbox::relay::calls {

namespace {

using Type = BinaryArray::Type;

constexpr std::int64_t max_retry_bytes = 1024 * 1024;
// A window with more events than this is not worth a probe.
constexpr std::int32_t max_probed = 5000;
// For statements that read a large window, or all keys that are held.
constexpr Micros long_time_limit = seconds(300);

template <class Values>
std::string array_of(Type type, const Values& values) {
    BinaryArray array(type);
    for (const auto& value : values)
        array.add(value);
    return std::string(array.bytes());
}

std::string integers(const std::vector<std::int32_t>& values) {
    return array_of(Type::int4, values);
}
std::string bigints(const std::vector<std::int64_t>& values) {
    return array_of(Type::int8, values);
}
std::string texts(const std::vector<std::string>& values) {
    return array_of(Type::text, values);
}

std::string numbers_or_null(std::span<const std::optional<std::int64_t>> values) {
    BinaryArray array(Type::int8);
    for (const auto& value : values)
        if (value)
            array.add(*value);
        else
            array.add_null();
    return std::string(array.bytes());
}

std::string places_of(std::span<const Place> places) {
    BinaryArray array(Type::tid);
    for (const Place& place : places) {
        const char bytes[] = {
            static_cast<char>(place.block >> 24), static_cast<char>(place.block >> 16),
            static_cast<char>(place.block >> 8),  static_cast<char>(place.block),
            static_cast<char>(place.offset >> 8), static_cast<char>(place.offset)};
        array.add(std::string_view(bytes, sizeof bytes));
    }
    return std::string(array.bytes());
}

std::vector<Option> options_of(const std::vector<std::string>& texts) {
    std::vector<Option> options;
    for (const std::string& text : texts) {
        const std::size_t equals = text.find('=');
        if (equals != std::string::npos)
            options.push_back({text.substr(0, equals), text.substr(equals + 1)});
    }
    return options;
}

// The server stores no zero byte.
std::string storable(std::string_view text) {
    return printable(text);
}

Micros pause_of(std::optional<double> seconds_left) {
    if (!seconds_left || !std::isfinite(*seconds_left))
        return never;
    return static_cast<Micros>(std::clamp(*seconds_left, 0.0, 3600.0) * 1e6);
}

// The client waits longer than the server.
void limit(Statement& statement, const Evaluation& evaluation) {
    statement.server_time_limit = evaluation.time_limit;
    statement.time_limit = std::max(statement.time_limit, evaluation.time_limit + seconds(10));
}

void add_range(Parameters& parameters, const Settled& settled) {
    if (settled.any)
        parameters.text(settled.in.to_string()).bigint(settled.position);
    else
        parameters.null(type::text).bigint(0);
}

}  // namespace

std::optional<Outcome> outcome_of(const Rows& rows) {
    if (rows.size() == 0)
        return std::nullopt;
    const std::string_view text = rows.bytes(0, 0);
    if (text == "ok")
        return Outcome::ok;
    if (text == "busy")
        return Outcome::busy;
    if (text == "lost")
        return Outcome::lost;
    return std::nullopt;
}

// -------------------------------------------------------------------------------------------------
// The database
// -------------------------------------------------------------------------------------------------

Statement who_am_i() {
    static const std::string text =
        "SELECT (" + std::string(power_question) + "), pg_catalog.pg_is_in_recovery()::text";
    return {.text = text.c_str()};
}

Statement listen() {
    return {.text = "LISTEN outbox_wake"};
}

Statement settings() {
    return {.text = "SELECT name, value FROM outbox_internal.relay_settings()"};
}

Statement destinations() {
    return {.text =
                "SELECT number, name, owner, password_required, may_read_files, options, "
                "mapping_options, patterns FROM outbox_internal.relay_destinations()"};
}

std::vector<Setting> settings_of(const Rows& rows) {
    std::vector<Setting> settings;
    const int name = rows.column("name"), value = rows.column("value");
    for (int i = 0; i < rows.size(); i++)
        settings.push_back({std::string(rows.bytes(i, name)), std::string(rows.bytes(i, value))});
    return settings;
}

std::vector<DestinationRow> destinations_of(const Rows& rows) {
    std::vector<DestinationRow> destinations;
    for (int i = 0; i < rows.size(); i++) {
        const auto number = rows.integer(i, rows.column("number"));
        if (!number)
            continue;
        destinations.push_back({
            {
                .number = *number,
                .name = std::string(rows.bytes(i, rows.column("name"))),
                .owner = std::string(rows.bytes(i, rows.column("owner"))),
                .password_required = rows.boolean(i, rows.column("password_required")),
                .may_read_files = rows.boolean(i, rows.column("may_read_files")),
                .options = options_of(rows.texts(i, rows.column("options"))),
                .mapping_options = options_of(rows.texts(i, rows.column("mapping_options"))),
            },
            rows.texts(i, rows.column("patterns")),
        });
    }
    return destinations;
}

Statement beat(const Beat& beat) {
    Statement statement{.text =
                            "SELECT * FROM outbox_internal.relay_beat($1, $2, $3, $4, $5, $6, "
                            "$7, $8, $9, $10, $11)"};
    statement.parameters.uuid(beat.id)
        .text(beat.name)
        .text(beat.version)
        .interval(beat.lease)
        .boolean(beat.direct)
        .array(type::int4_array, integers(beat.held))
        .array(type::int8_array, bigints(beat.leases))
        .array(type::int4_array, integers(beat.idle))
        .array(type::text_array, texts(beat.frontiers))
        .boolean(beat.rest)
        .text(beat.identity);
    return statement;
}

std::optional<BeatAnswer> beat_of(const Rows& rows) {
    if (rows.size() != 1 || rows.column("configuration") < 0)
        return std::nullopt;
    return BeatAnswer{
        .configuration = std::string(rows.bytes(0, rows.column("configuration"))),
        .resting = rows.boolean(0, rows.column("resting")),
        .holds_lock = rows.boolean(0, rows.column("holds_lock")),
        .free = rows.integers(0, rows.column("free")),
        .lost = rows.integers(0, rows.column("lost")),
        .work = rows.integers(0, rows.column("work")),
        .paused = rows.integers(0, rows.column("paused")),
        .resumed = rows.bigints(0, rows.column("resumed")),
        .copy = std::string(rows.bytes(0, rows.column("copy"))),
    };
}

Statement probe(const Probe& probe) {
    Statement statement{.text = "SELECT * FROM outbox_internal.relay_probe($1, $2, $3, $4, $5)"};
    statement.parameters.array(type::int4_array, integers(probe.numbers))
        .array(type::text_array, texts(probe.frontiers))
        .array(type::text_array, texts(probe.patterns))
        .array(type::int4_array, integers(probe.pattern_of))
        .integer(max_probed);
    return statement;
}

std::vector<Probed> probed_of(const Rows& rows) {
    std::vector<Probed> probed;
    for (int i = 0; i < rows.size(); i++) {
        const auto end = Snapshot::parse(rows.bytes(i, rows.column("window_end")));
        const auto events = rows.bigint(i, rows.column("found"));
        if (!end || !events)
            continue;
        probed.push_back({.frontier = std::string(rows.bytes(i, rows.column("frontier"))),
                          .end = *end,
                          .events = *events,
                          .last_position = rows.bigint(i, rows.column("last_position")).value_or(0),
                          .wanted = rows.integers(i, rows.column("wanted"))});
    }
    return probed;
}

Statement wake(const Uuid& id) {
    Statement statement{.text = "SELECT outbox_internal.relay_wake($1)"};
    statement.parameters.uuid(id);
    return statement;
}

Statement release_destination_lock(std::int32_t number) {
    Statement statement{.text = "SELECT pg_catalog.pg_advisory_unlock(1869968482, $1)"};
    statement.parameters.integer(number);
    return statement;
}

Statement report(const Uuid& id, std::string_view figures) {
    Statement statement{.text = "SELECT outbox_internal.relay_report($1, $2)"};
    statement.parameters.uuid(id).jsonb(figures);
    return statement;
}

Statement maintain() {
    return {.text = "SELECT outbox_internal.relay_maintain()"};
}

Statement leave(const Uuid& id) {
    Statement statement{.text = "SELECT outbox_internal.relay_leave($1)"};
    statement.parameters.uuid(id);
    return statement;
}

// -------------------------------------------------------------------------------------------------
// Taking a destination
// -------------------------------------------------------------------------------------------------

Statement take(const Uuid& id, std::int32_t number, bool direct) {
    Statement statement{
        .text =
            "SELECT lease, done, upto, position, foreign_cluster, live_after, published, failures, "
            "failing_since, resumed FROM outbox_internal.relay_take($1, $2, $3)"};
    statement.parameters.uuid(id).integer(number).boolean(direct);
    return statement;
}

std::optional<Taken> taken_of(const Rows& rows, std::int32_t number) {
    const auto lease = rows.bigint(0, rows.column("lease"));
    if (!lease)
        return std::nullopt;
    Taken taken{.lease = *lease};
    taken.cursor.number = number;
    taken.cursor.done = Snapshot::parse(rows.bytes(0, rows.column("done"))).value_or(Snapshot{});
    if (const int upto = rows.column("upto"); !rows.is_null(0, upto))
        taken.cursor.upto = Snapshot::parse(rows.bytes(0, upto));
    taken.cursor.position = rows.bigint(0, rows.column("position")).value_or(0);
    const auto count = [&](const char* column) {
        return static_cast<std::uint64_t>(rows.bigint(0, rows.column(column)).value_or(0));
    };
    taken.cursor.live_after = rows.bigint(0, rows.column("live_after")).value_or(0);
    taken.cursor.published = count("published");
    taken.cursor.failures = count("failures");
    taken.cursor.failing_since = rows.bigint(0, rows.column("failing_since")).value_or(0);
    taken.cursor.resumed = rows.bigint(0, rows.column("resumed")).value_or(0);
    taken.cursor.foreign = rows.boolean(0, rows.column("foreign_cluster"));
    return taken;
}

Statement begin(const Held& held, const Cursor& cursor, const Evaluation& evaluation) {
    Statement statement{.text = evaluation.any()
                                    ? "SELECT outcome, recorded, held_keys, paused, trouble "
                                      "FROM outbox_internal.relay_begin_expressions($1, $2, $3)"
                                    : "SELECT outcome, recorded, held_keys, paused "
                                      "FROM outbox_internal.relay_begin($1, $2, $3)",
                        .time_limit = long_time_limit};
    statement.parameters.integer(held.number).bigint(held.lease);
    if (cursor.foreign)
        statement.parameters.null(type::text);
    else
        statement.parameters.text(cursor.done.to_string());
    return statement;
}

Statement follow(const Held& held) {
    Statement statement{.text =
                            "SELECT outcome, held_keys, paused, resumed "
                            "FROM outbox_internal.relay_follow($1, $2)",
                        .time_limit = long_time_limit};
    statement.parameters.integer(held.number).bigint(held.lease);
    return statement;
}

Begun begun_of(const Rows& rows) {
    return {
        .recorded = rows.bigints(0, rows.column("recorded")),
        .held_keys = rows.texts(0, rows.column("held_keys")),
        .paused = rows.boolean(0, rows.column("paused")),
        .resumed = rows.bigint(0, rows.column("resumed")).value_or(0),
        .trouble = std::string(rows.bytes(0, rows.column("trouble"))),
        .doubtful = rows.bigint(0, rows.column("doubtful")).value_or(0),
        .unknown = rows.bigint(0, rows.column("unknown")).value_or(0),
    };
}

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

Statement look(std::int32_t number, const std::vector<std::string>& patterns, const Range& range,
               std::int32_t max_events, const Evaluation& evaluation) {
    Statement statement{
        .text = evaluation.any()
                    ? "SELECT * FROM outbox_internal.relay_look_expressions($1, $2, $3, $4, $5, $6)"
                    : "SELECT * FROM outbox_internal.relay_look($1, $2, $3, $4, $5, $6)"};
    limit(statement, evaluation);
    statement.parameters.integer(number)
        .array(type::text_array, texts(patterns))
        .text(range.from.to_string());
    add_range(statement.parameters, range.settled);
    statement.parameters.integer(max_events);
    return statement;
}

std::optional<Found> found_of(const Rows& rows) {
    if (rows.is_null(0, rows.column("window_end")))
        return Found{.held = true, .end = {}};
    const auto end = Snapshot::parse(rows.bytes(0, rows.column("window_end")));
    const auto events = rows.bigint(0, rows.column("found"));
    if (!end || !events)
        return std::nullopt;
    return Found{.end = *end,
                 .events = *events,
                 .last_position = rows.bigint(0, rows.column("last_position")).value_or(0)};
}

Statement entries(std::int32_t number, const std::vector<std::string>& patterns, const Range& range,
                  const Snapshot& end, std::int64_t after, std::int32_t max_entries) {
    Statement statement{.text =
                            "SELECT segments, places, positions, last_position, complete "
                            "FROM outbox_internal.relay_entries($1, $2, $3, $4, $5, $6, $7, $8)",
                        .time_limit = long_time_limit};
    statement.parameters.integer(number)
        .array(type::text_array, texts(patterns))
        .text(range.from.to_string())
        .text(end.to_string());
    add_range(statement.parameters, range.settled);
    statement.parameters.bigint(after).integer(max_entries);
    return statement;
}

Statement rows(std::int32_t number, std::int32_t segment, std::span<const Place> places,
               const std::vector<std::int64_t>& positions, const Evaluation& evaluation) {
    Statement statement{
        .text = evaluation.any()
                    ? "SELECT * FROM outbox_internal.relay_rows_expressions($1, $2, $3, $4)"
                    : "SELECT * FROM outbox_internal.relay_rows($1, $2, $3)",
        .max_answer = places.size() == 1 ? Statement::long_answer : Statement::usual_answer};
    limit(statement, evaluation);
    if (evaluation.any())
        statement.parameters.integer(number);
    statement.parameters.integer(segment)
        .array(type::tid_array, places_of(places))
        .array(type::int8_array, bigints(positions));
    return statement;
}

// -------------------------------------------------------------------------------------------------
// Writing
// -------------------------------------------------------------------------------------------------

static void add_receipts(Parameters& parameters, const std::vector<Receipt>& receipts) {
    BinaryArray ids(Type::uuid), positions(Type::int8), times(Type::float8), messages(Type::text);
    for (const Receipt& receipt : receipts) {
        ids.add(receipt.event_id);
        positions.add(receipt.position);
        times.add_number(static_cast<double>(receipt.published_at) / 1e6);
        messages.add(storable(receipt.message_id));
    }
    parameters.array(type::uuid_array, ids.bytes())
        .array(type::int8_array, positions.bytes())
        .array(type::float8_array, times.bytes())
        .array(type::text_array, messages.bytes());
}

Statement pause(const Held& held, const std::string& why) {
    Statement statement{.text = "SELECT outbox_internal.relay_pause($1, $2, $3)"};
    statement.parameters.integer(held.number).bigint(held.lease).text(why);
    return statement;
}

Statement save(const Held& held, const Relay& relay) {
    Statement statement{.text =
                            "SELECT outbox_internal.relay_save($1, $2, $3, $4, $5, $6, $7, $8, "
                            "$9, $10, $11, $12, $13, $14, $15)"};
    const Cursor& cursor = relay.cursor();
    statement.parameters.integer(held.number).bigint(held.lease);
    if (relay.may_save_cursor())
        statement.parameters.text(cursor.done.to_string());
    else
        statement.parameters.null(type::text);
    if (cursor.upto)
        statement.parameters.text(cursor.upto->to_string());
    else
        statement.parameters.null(type::text);
    statement.parameters.bigint(cursor.position).boolean(relay.flush_is_due());
    add_receipts(statement.parameters, relay.pipeline().receipts());
    BinaryArray firsts(Type::int8), lasts(Type::int8);
    for (const NotedTransactions::Passed& passed : relay.passed_transactions()) {
        firsts.add(passed.first);
        lasts.add(passed.last);
    }
    statement.parameters.array(type::int8_array, firsts.bytes())
        .array(type::int8_array, lasts.bytes())
        .bigint(static_cast<std::int64_t>(relay.stats().all_delivered()))
        .bigint(static_cast<std::int64_t>(relay.stats().all_failures()))
        .bigint(relay.outage_to_save());
    return statement;
}

namespace {

// Events of one kind of record.
struct Records {
    BinaryArray xids{Type::xid8}, positions{Type::int8}, errors{Type::text};
    BinaryArray steps{Type::int4}, permanent{Type::boolean};

    void add(const Record& record) {
        xids.add(static_cast<std::int64_t>(record.event->xid));
        positions.add(record.event->position);
        errors.add(storable(record.error));
        steps.add(static_cast<std::int32_t>(record.steps));
        permanent.add_boolean(record.permanent);
    }
    void add_places(Parameters& parameters) {
        parameters.array(type::xid8_array, xids.bytes()).array(type::int8_array, positions.bytes());
    }
};

}  // namespace

Statement record(const Held& held, const Uuid& token, Relay& relay) {
    Records moved, released, refused, parked, confirmed, unsent;
    BinaryArray keys(Type::text);
    relay.pipeline().gather_records();
    for (const Record& record : relay.pipeline().records()) {
        switch (record.kind) {
            case Record::Kind::refused:
                refused.add(record);
                break;
            case Record::Kind::released:
                released.add(record);
                break;
            case Record::Kind::moved:
                moved.add(record);
                break;
            case Record::Kind::parked:
                parked.add(record);
                break;
            case Record::Kind::confirmed:
                confirmed.add(record);
                break;
            case Record::Kind::unsent:
                unsent.add(record);
                break;
        }
        if (!record.event->ordering_key.empty())
            keys.add(record.event->ordering_key);
    }
    Statement statement{
        .text =
            "SELECT outcome, freed_keys, failed_positions, failed_attempts, failed_dead, "
            "next_retry FROM outbox_internal.relay_record($1, $2, $3, $4, $5, $6, $7, $8, $9, "
            "$10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)"};
    Parameters& parameters = statement.parameters;
    parameters.integer(held.number).bigint(held.lease).uuid(token);
    moved.add_places(parameters);
    released.add_places(parameters);
    parameters.array(type::text_array, released.errors.bytes())
        .array(type::int4_array, released.steps.bytes());
    refused.add_places(parameters);
    parameters.array(type::text_array, refused.errors.bytes())
        .array(type::bool_array, refused.permanent.bytes());
    parked.add_places(parameters);
    parameters.array(type::int8_array, confirmed.positions.bytes())
        .array(type::int8_array, unsent.positions.bytes())
        .array(type::text_array, keys.bytes());
    if (!relay.has_transactions()) {
        parameters.null(type::int8_array).null(type::int8_array);
        return statement;
    }
    BinaryArray settled_from(Type::int8);
    for (const NotedTransactions::Passed& passed : relay.passed_transactions())
        settled_from.add(passed.first);
    parameters.array(type::int8_array, settled_from.bytes())
        .array(type::int8_array, numbers_or_null(relay.transactions().committed()));
    return statement;
}

Recorded recorded_of(const Rows& rows) {
    Recorded recorded;
    recorded.freed_keys = rows.texts(0, rows.column("freed_keys"));
    recorded.next_retry = pause_of(rows.number(0, rows.column("next_retry")));
    const auto positions = rows.bigints(0, rows.column("failed_positions"));
    const auto attempts = rows.integers(0, rows.column("failed_attempts"));
    const auto dead = array_elements(rows.bytes(0, rows.column("failed_dead")), type::boolean);
    for (std::size_t i = 0; i < positions.size() && i < attempts.size(); i++)
        recorded.refusals.push_back(
            {.position = positions[i],
             .attempts = attempts[i],
             .dead = dead && i < dead->size() && (*dead)[i].size == 1 && *(*dead)[i].data != '\0'});
    return recorded;
}

Statement retries(const Held& held, const Uuid& token, std::int32_t hurry, std::int32_t at_most,
                  const Evaluation& evaluation) {
    Statement statement{
        .text =
            evaluation.any()
                ? "SELECT * FROM outbox_internal.relay_retries_expressions($1, $2, $3, $4, $5, $6)"
                : "SELECT * FROM outbox_internal.relay_retries($1, $2, $3, $4, $5, $6)",
        .max_answer = Statement::long_answer};
    limit(statement, evaluation);
    statement.parameters.integer(held.number)
        .bigint(held.lease)
        .uuid(token)
        .integer(hurry)
        .integer(at_most)
        .bigint(max_retry_bytes);
    return statement;
}

Retries retries_of(const Rows& rows) {
    return {.next_retry = pause_of(rows.number(0, rows.column("next_retry"))),
            .hurried = rows.bigint(0, rows.column("hurried")).value_or(0),
            .freed_keys = rows.texts(0, rows.column("freed_keys"))};
}

// -------------------------------------------------------------------------------------------------
// Exactly once
// -------------------------------------------------------------------------------------------------

Statement recover(const Held& held, Relay& relay) {
    Statement statement{.text =
                            "SELECT outcome, doubtful, unknown, recorded, held_keys "
                            "FROM outbox_internal.relay_recover($1, $2, $3, $4)",
                        .time_limit = long_time_limit};
    statement.parameters.integer(held.number).bigint(held.lease);
    if (relay.cursor().foreign)
        statement.parameters.null(type::text);
    else
        statement.parameters.text(relay.cursor().done.to_string());
    statement.parameters.array(type::int8_array, numbers_or_null(relay.transactions().committed()));
    return statement;
}

Statement note(const Held& held, const Transaction& transaction) {
    std::vector<std::int64_t> log, retries;
    for (const Batch* batch : transaction.batches)
        for (const Event* event : batch->events)
            (event->retry ? retries : log).push_back(event->position);
    Statement statement{.text = "SELECT outbox_internal.relay_note($1, $2, $3, $4, $5, $6)"};
    statement.parameters.integer(held.number)
        .bigint(held.lease)
        .integer(static_cast<std::int32_t>(transaction.line))
        .bigint(transaction.number)
        .text(ranges_of(log))
        .text(ranges_of(retries));
    return statement;
}

// -------------------------------------------------------------------------------------------------
// Endpoints
// -------------------------------------------------------------------------------------------------

Statement consult(const Held& held, std::string_view question) {
    Statement statement{.text = "SELECT * FROM outbox_internal.relay_endpoints($1, $2, $3)",
                        .time_limit = long_time_limit,
                        .max_answer = Statement::long_answer};
    statement.parameters.integer(held.number).bigint(held.lease).jsonb(question);
    return statement;
}

namespace {

struct AnswerColumns {
    int kind, endpoint, url, topics, secret_name, paused, behind, snapshot, count, due_in, attempts,
        xid;
};

AnswerColumns columns_of(const Rows& rows) {
    return {.kind = rows.column("kind"),
            .endpoint = rows.column("endpoint"),
            .url = rows.column("url"),
            .topics = rows.column("topics"),
            .secret_name = rows.column("secret_name"),
            .paused = rows.column("paused"),
            .behind = rows.column("behind"),
            .snapshot = rows.column("snapshot"),
            .count = rows.column("count"),
            .due_in = rows.column("due_in"),
            .attempts = rows.column("attempts"),
            .xid = rows.column("xid")};
}

EndpointAnswerRow row_of(const Rows& rows, int row, const AnswerColumns& columns) {
    return {.kind = rows.bytes(row, columns.kind),
            .endpoint = rows.bytes(row, columns.endpoint),
            .url = rows.bytes(row, columns.url),
            .topics = rows.bytes(row, columns.topics),
            .secret_name = rows.bytes(row, columns.secret_name),
            .xid = static_cast<std::uint64_t>(rows.bigint(row, columns.xid).value_or(0)),
            .paused = rows.boolean(row, columns.paused),
            .behind = rows.boolean(row, columns.behind),
            .snapshot = rows.bytes(row, columns.snapshot),
            .count = rows.bigint(row, columns.count).value_or(0),
            .due_in = rows.number(row, columns.due_in),
            .attempts = rows.integer(row, columns.attempts).value_or(0)};
}

}  // namespace

std::optional<EndpointAnswer> answer_of(Rows rows) {
    EventRows events;
    if (!events.start(std::move(rows)))
        return std::nullopt;
    const AnswerColumns columns = columns_of(events.rows());
    EndpointAnswerBuilder builder;
    for (int i = 0; i < events.size(); i++) {
        const EndpointAnswerRow row = row_of(events.rows(), i, columns);
        if (row.kind == EndpointAnswerBuilder::event) {
            EventRows::Copied copied = events.copy(i, builder.block());
            if (copied == EventRows::Copied::block_is_full) {
                builder.next_block();
                copied = events.copy(i, builder.block());
            }
            if (copied != EventRows::Copied::yes)
                return std::nullopt;
        }
        builder.add(row);
    }
    return builder.take();
}

}  // namespace outbox::relay::calls
