#include "relay/serve/calls.hpp"

#include <utility>

#include "core/advisory_locks.hpp"
#include "core/powerful_role.hpp"
#include "core/sql/binary_array.hpp"

namespace outbox::relay::calls {

namespace {

using sql::array_of;
using Type = sql::BinaryArray::Type;

// A window with more events than this is not worth a probe.
constexpr std::int32_t max_probed = 5000;

std::string places_of(std::span<const Place> places) {
    sql::BinaryArray array(Type::tid);
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

void add_range(Parameters& parameters, const Settled& settled) {
    if (settled.any)
        parameters.text(settled.in.to_string()).bigint(settled.position);
    else
        parameters.null(type::text).bigint(0);
}

}  // namespace

// -------------------------------------------------------------------------------------------------
// The database
// -------------------------------------------------------------------------------------------------

Call who_am_i() {
    static const std::string text =
        "SELECT (" + std::string(power_question) + "), pg_catalog.pg_is_in_recovery()::text";
    return {.text = text.c_str()};
}

Call listen() {
    return {.text = "LISTEN outbox_wake"};
}

Call settings() {
    return {.text = "SELECT name, value FROM outbox_internal.relay_settings()"};
}

Call destinations() {
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

Call beat(const Beat& beat) {
    Call call{.text =
                  "SELECT * FROM outbox_internal.relay_beat($1, $2, $3, $4, $5, $6, "
                  "$7, $8, $9, $10, $11)"};
    call.parameters.uuid(beat.id)
        .text(beat.name)
        .text(beat.version)
        .interval(beat.lease)
        .boolean(beat.direct)
        .array(type::int4_array, array_of(Type::int4, beat.held))
        .array(type::int8_array, array_of(Type::int8, beat.leases))
        .array(type::int4_array, array_of(Type::int4, beat.idle))
        .array(type::text_array, array_of(Type::text, beat.frontiers))
        .boolean(beat.rest)
        .text(beat.identity);
    return call;
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

Call probe(const Probe& probe) {
    Call call{.text = "SELECT * FROM outbox_internal.relay_probe($1, $2, $3, $4, $5)"};
    call.parameters.array(type::int4_array, array_of(Type::int4, probe.numbers))
        .array(type::text_array, array_of(Type::text, probe.frontiers))
        .array(type::text_array, array_of(Type::text, probe.patterns))
        .array(type::int4_array, array_of(Type::int4, probe.pattern_of))
        .integer(max_probed);
    return call;
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

Call wake(const Uuid& id) {
    Call call{.text = "SELECT outbox_internal.relay_wake($1)"};
    call.parameters.uuid(id);
    return call;
}

Call release_destination_lock(std::int32_t number) {
    Call call{.text = "SELECT pg_catalog.pg_advisory_unlock($1, $2)"};
    call.parameters.integer(lock_class).integer(number);
    return call;
}

Call report(const Uuid& id, std::string_view figures) {
    Call call{.text = "SELECT outbox_internal.relay_report($1, $2)"};
    call.parameters.uuid(id).jsonb(figures);
    return call;
}

Call maintain() {
    return {.text = "SELECT outbox_internal.relay_maintain()"};
}

Call leave(const Uuid& id) {
    Call call{.text = "SELECT outbox_internal.relay_leave($1)"};
    call.parameters.uuid(id);
    return call;
}

// -------------------------------------------------------------------------------------------------
// Taking a destination
// -------------------------------------------------------------------------------------------------

Call take(const Uuid& id, std::int32_t number, bool direct) {
    Call call{.text =
                  "SELECT $2 AS number, lease, done, upto, position, foreign_cluster, live_after, "
                  "published, failures, failing_since, resumed "
                  "FROM outbox_internal.relay_take($1, $2, $3)"};
    call.parameters.uuid(id).integer(number).boolean(direct);
    return call;
}

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

Call look(std::int32_t number, const std::vector<std::string>& patterns, const Range& range,
          std::int32_t max_events, const Evaluation& evaluation) {
    Call call{
        .text = evaluation.any
                    ? "SELECT * FROM outbox_internal.relay_look_expressions($1, $2, $3, $4, $5, $6)"
                    : "SELECT * FROM outbox_internal.relay_look($1, $2, $3, $4, $5, $6)"};
    evaluation.limit(call);
    call.parameters.integer(number)
        .array(type::text_array, array_of(Type::text, patterns))
        .text(range.from.to_string());
    add_range(call.parameters, range.settled);
    call.parameters.integer(max_events);
    return call;
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

Call entries(std::int32_t number, const std::vector<std::string>& patterns, const Range& range,
             const Snapshot& end, std::int64_t after, std::int32_t max_entries) {
    Call call{.text =
                  "SELECT segments, places, positions, last_position, complete "
                  "FROM outbox_internal.relay_entries($1, $2, $3, $4, $5, $6, $7, $8)",
              .time_limit = Call::long_time_limit};
    call.parameters.integer(number)
        .array(type::text_array, array_of(Type::text, patterns))
        .text(range.from.to_string())
        .text(end.to_string());
    add_range(call.parameters, range.settled);
    call.parameters.bigint(after).integer(max_entries);
    return call;
}

Call rows(std::int32_t number, std::int32_t segment, std::span<const Place> places,
          const std::vector<std::int64_t>& positions, const Evaluation& evaluation) {
    Call call{.text = evaluation.any
                          ? "SELECT * FROM outbox_internal.relay_rows_expressions($1, $2, $3, $4)"
                          : "SELECT * FROM outbox_internal.relay_rows($1, $2, $3)",
              .max_answer = places.size() == 1 ? Call::long_answer : Call::usual_answer};
    evaluation.limit(call);
    if (evaluation.any)
        call.parameters.integer(number);
    call.parameters.integer(segment)
        .array(type::tid_array, places_of(places))
        .array(type::int8_array, array_of(Type::int8, positions));
    return call;
}

}  // namespace outbox::relay::calls
