#include "core/relay/calls.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/position_ranges.hpp"
#include "core/sql/binary_array.hpp"

namespace outbox::calls {

namespace {

using sql::BinaryArray;
using sql::Parameters;
namespace type = sql::type;
using Type = BinaryArray::Type;

constexpr std::int64_t max_retry_bytes = 1024 * 1024;

std::string numbers_or_null(std::span<const std::optional<std::int64_t>> values) {
    BinaryArray array(Type::int8);
    for (const auto& value : values)
        if (value)
            array.add(*value);
        else
            array.add_null();
    return std::string(array.bytes());
}

// Makes text of a peer storable: one line without a zero byte, and only characters that every
// encoding has if the database is not in UTF-8.
std::string storable(std::string_view text, const Held& held) {
    std::string line = printable(text);
    if (held.only_ascii)
        std::replace_if(
            line.begin(), line.end(), [](char c) { return (c & 0x80) != 0; }, '?');
    return line;
}

void add_snapshot(Parameters& parameters, bool there_is_one, const Snapshot& snapshot) {
    if (there_is_one)
        parameters.text(snapshot.to_string());
    else
        parameters.null(type::text);
}

Micros pause_of(std::optional<double> seconds_left) {
    if (!seconds_left || !std::isfinite(*seconds_left))
        return never;
    return static_cast<Micros>(std::clamp(*seconds_left, 0.0, 3600.0) * 1e6);
}

}  // namespace

// The client waits longer than the server.
void Evaluation::limit(Call& call) const noexcept {
    call.server_time_limit = time_limit;
    call.time_limit = std::max(call.time_limit, time_limit + seconds(10));
}

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
// Beginning
// -------------------------------------------------------------------------------------------------

Call take_inside(sql::Oid server) {
    Call call{.text = "SELECT * FROM outbox_internal.worker_take($1)"};
    call.parameters.bigint(server);
    return call;
}

std::optional<Taken> taken_of(const Rows& rows) {
    const auto lease = rows.bigint(0, rows.column("lease"));
    if (!lease)
        return std::nullopt;
    Taken taken{.lease = *lease};
    taken.cursor.number = rows.integer(0, rows.column("number")).value_or(0);
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

Call wait(const Held& held) {
    Call call{.text =
                  "SELECT coalesce((SELECT 'ok' FROM outbox.cursor AS c "
                  "WHERE c.number = $1 AND c.lease = $2 FOR UPDATE), 'lost')"};
    call.parameters.integer(held.number).bigint(held.lease);
    return call;
}

Call begin(const Held& held, const Cursor& cursor, const Evaluation& evaluation) {
    Call call{.text = evaluation.any ? "SELECT outcome, recorded, held_keys, paused, trouble "
                                       "FROM outbox_internal.relay_begin_expressions($1, $2, $3)"
                                     : "SELECT outcome, recorded, held_keys, paused "
                                       "FROM outbox_internal.relay_begin($1, $2, $3)",
              .time_limit = Call::long_time_limit};
    call.parameters.integer(held.number).bigint(held.lease);
    add_snapshot(call.parameters, !cursor.foreign, cursor.done);
    return call;
}

Call follow(const Held& held) {
    Call call{.text =
                  "SELECT outcome, held_keys, paused, resumed "
                  "FROM outbox_internal.relay_follow($1, $2)",
              .time_limit = Call::long_time_limit};
    call.parameters.integer(held.number).bigint(held.lease);
    return call;
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
// Writing
// -------------------------------------------------------------------------------------------------

static void add_receipts(Parameters& parameters, const std::vector<Receipt>& receipts,
                         const Held& held) {
    BinaryArray ids(Type::uuid), positions(Type::int8), times(Type::float8), messages(Type::text);
    for (const Receipt& receipt : receipts) {
        ids.add(receipt.event_id);
        positions.add(receipt.position);
        times.add_number(static_cast<double>(receipt.published_at) / 1e6);
        messages.add(storable(receipt.message_id, held));
    }
    parameters.array(type::uuid_array, ids.bytes())
        .array(type::int8_array, positions.bytes())
        .array(type::float8_array, times.bytes())
        .array(type::text_array, messages.bytes());
}

Call pause(const Held& held, const std::string& why) {
    Call call{.text = "SELECT outbox_internal.relay_pause($1, $2, $3)"};
    call.parameters.integer(held.number).bigint(held.lease).text(storable(why, held));
    return call;
}

Call save(const Held& held, const Relay& relay) {
    Call call{.text =
                  "SELECT outbox_internal.relay_save($1, $2, $3, $4, $5, $6, $7, $8, "
                  "$9, $10, $11, $12, $13, $14, $15)"};
    const Cursor& cursor = relay.cursor();
    call.parameters.integer(held.number).bigint(held.lease);
    add_snapshot(call.parameters, relay.may_save_cursor(), cursor.done);
    add_snapshot(call.parameters, cursor.upto.has_value(), cursor.upto.value_or(Snapshot{}));
    call.parameters.bigint(cursor.position).boolean(relay.flush_is_due());
    add_receipts(call.parameters, relay.pipeline().receipts(), held);
    BinaryArray firsts(Type::int8), lasts(Type::int8);
    for (const NotedTransactions::Passed& passed : relay.passed_transactions()) {
        firsts.add(passed.first);
        lasts.add(passed.last);
    }
    call.parameters.array(type::int8_array, firsts.bytes())
        .array(type::int8_array, lasts.bytes())
        .bigint(static_cast<std::int64_t>(relay.stats().all_delivered()))
        .bigint(static_cast<std::int64_t>(relay.stats().all_failures()))
        .bigint(relay.outage_to_save());
    return call;
}

namespace {

// Events of one Record::Kind.
struct Records {
    BinaryArray xids{Type::xid8}, positions{Type::int8}, errors{Type::text};
    BinaryArray steps{Type::int4}, permanent{Type::boolean};

    void add(const Record& record, const Held& held) {
        xids.add(static_cast<std::int64_t>(record.event->xid));
        positions.add(record.event->position);
        errors.add(storable(record.error, held));
        steps.add(static_cast<std::int32_t>(record.steps));
        permanent.add_boolean(record.permanent);
    }
    void add_places(Parameters& parameters) {
        parameters.array(type::xid8_array, xids.bytes()).array(type::int8_array, positions.bytes());
    }
};

}  // namespace

Call record(const Held& held, const Uuid& token, Relay& relay) {
    std::array<Records, 6> all;
    const auto of = [&](Record::Kind kind) -> Records& {
        return all[static_cast<std::size_t>(kind)];
    };
    BinaryArray keys(Type::text);
    relay.pipeline().gather_records();
    for (const Record& record : relay.pipeline().records()) {
        of(record.kind).add(record, held);
        if (!record.event->ordering_key.empty())
            keys.add(record.event->ordering_key);
    }
    Records &released = of(Record::Kind::released), &refused = of(Record::Kind::refused);
    Call call{
        .text =
            "SELECT outcome, freed_keys, failed_positions, failed_attempts, failed_dead, "
            "next_retry FROM outbox_internal.relay_record($1, $2, $3, $4, $5, $6, $7, $8, $9, "
            "$10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)"};
    Parameters& parameters = call.parameters;
    parameters.integer(held.number).bigint(held.lease).uuid(token);
    of(Record::Kind::moved).add_places(parameters);
    released.add_places(parameters);
    parameters.array(type::text_array, released.errors.bytes())
        .array(type::int4_array, released.steps.bytes());
    refused.add_places(parameters);
    parameters.array(type::text_array, refused.errors.bytes())
        .array(type::bool_array, refused.permanent.bytes());
    of(Record::Kind::parked).add_places(parameters);
    parameters.array(type::int8_array, of(Record::Kind::confirmed).positions.bytes())
        .array(type::int8_array, of(Record::Kind::unsent).positions.bytes())
        .array(type::text_array, keys.bytes());
    if (!relay.has_transactions()) {
        parameters.null(type::int8_array).null(type::int8_array);
        return call;
    }
    BinaryArray settled_from(Type::int8);
    for (const NotedTransactions::Passed& passed : relay.passed_transactions())
        settled_from.add(passed.first);
    parameters.array(type::int8_array, settled_from.bytes())
        .array(type::int8_array, numbers_or_null(relay.transactions().committed()));
    return call;
}

Recorded recorded_of(const Rows& rows) {
    Recorded recorded;
    recorded.freed_keys = rows.texts(0, rows.column("freed_keys"));
    recorded.next_retry = pause_of(rows.number(0, rows.column("next_retry")));
    const auto positions = rows.bigints(0, rows.column("failed_positions"));
    const auto attempts = rows.integers(0, rows.column("failed_attempts"));
    const auto dead = sql::array_elements(rows.bytes(0, rows.column("failed_dead")), type::boolean);
    for (std::size_t i = 0; i < positions.size() && i < attempts.size(); i++)
        recorded.refusals.push_back(
            {.position = positions[i],
             .attempts = attempts[i],
             .dead = dead && i < dead->size() && (*dead)[i].size == 1 && *(*dead)[i].data != '\0'});
    return recorded;
}

Call retries(const Held& held, const Uuid& token, std::int32_t hurry, std::int32_t at_most,
             const Evaluation& evaluation) {
    Call call{
        .text =
            evaluation.any
                ? "SELECT * FROM outbox_internal.relay_retries_expressions($1, $2, $3, $4, $5, $6)"
                : "SELECT * FROM outbox_internal.relay_retries($1, $2, $3, $4, $5, $6)",
        .max_answer = Call::long_answer};
    evaluation.limit(call);
    call.parameters.integer(held.number)
        .bigint(held.lease)
        .uuid(token)
        .integer(hurry)
        .integer(at_most)
        .bigint(max_retry_bytes);
    return call;
}

Retries retries_of(const Rows& rows) {
    return {.next_retry = pause_of(rows.number(0, rows.column("next_retry"))),
            .hurried = rows.bigint(0, rows.column("hurried")).value_or(0),
            .freed_keys = rows.texts(0, rows.column("freed_keys"))};
}

// -------------------------------------------------------------------------------------------------
// Exactly once
// -------------------------------------------------------------------------------------------------

Call recover(const Held& held, Relay& relay) {
    Call call{.text =
                  "SELECT outcome, doubtful, unknown, recorded, held_keys "
                  "FROM outbox_internal.relay_recover($1, $2, $3, $4)",
              .time_limit = Call::long_time_limit};
    call.parameters.integer(held.number).bigint(held.lease);
    add_snapshot(call.parameters, !relay.cursor().foreign, relay.cursor().done);
    call.parameters.array(type::int8_array, numbers_or_null(relay.transactions().committed()));
    return call;
}

Call note(const Held& held, const Transaction& transaction) {
    std::vector<std::int64_t> log, retries;
    for (const Batch* batch : transaction.batches)
        for (const Event* event : batch->events)
            (event->retry ? retries : log).push_back(event->position);
    Call call{.text = "SELECT outbox_internal.relay_note($1, $2, $3, $4, $5, $6)"};
    call.parameters.integer(held.number)
        .bigint(held.lease)
        .integer(static_cast<std::int32_t>(transaction.line))
        .bigint(transaction.number)
        .text(ranges_of(log))
        .text(ranges_of(retries));
    return call;
}

// -------------------------------------------------------------------------------------------------
// Endpoints
// -------------------------------------------------------------------------------------------------

Call consult(const Held& held, std::string_view question) {
    Call call{.text = "SELECT * FROM outbox_internal.relay_endpoints($1, $2, $3)",
              .time_limit = Call::long_time_limit,
              .max_answer = Call::long_answer};
    call.parameters.integer(held.number).bigint(held.lease).jsonb(question);
    return call;
}

}  // namespace outbox::calls
