#include "applier.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "handler_transaction.hpp"
#include "text.hpp"

namespace inbox {

using std::chrono::milliseconds;

// With more than 64 subtransactions a transaction no longer fits into the cache that all sessions
// share, and the whole server becomes slower.
static constexpr std::size_t max_savepoints = 50;
// After this many conflicts in a row, an event that was applied alone is at fault.
static constexpr unsigned max_conflicts = 10;
// After this many connections lost in a row, likewise. The server may end while an event is applied, but
// not again and again.
static constexpr unsigned max_losses = 3;

// ------------------------------------------------------------------------------------------------
// Failures
// ------------------------------------------------------------------------------------------------

// Transactions blocked each other, and one of them must begin again.
static bool is_conflict(const StatementError& error) {
    return error.sqlstate() == "40001" || error.sqlstate() == "40P01";
}

// The server is in trouble, whatever the event: the disk is full, there are too many connections,
// files cannot be read, it is no longer the primary.
static bool is_trouble(const StatementError& error) {
    const std::string& state = error.sqlstate();
    return state == "53100" || state == "53300" || state == "58030" || state == "25006";
}

// The database cannot store the name of the consumer or of its source. Those of events are recorded without
// such texts.
static bool is_about_names(const StatementError& error) {
    return error.sqlstate() == "22P05" || error.sqlstate() == "22021";
}

bool is_fatal(const StatementError& error) {
    const std::string& state = error.sqlstate();
    return error.whose() == Whose::own &&
           (state == "3F000" || state == "42883" || state == "42501" || is_about_names(error));
}

static const char* hint_of_fatal(const StatementError& error) {
    return is_about_names(error)
               ? "The names of the consumer, of its source and of streams or queues must have a "
                 "form in the encoding of the database."
               : "The database needs pg_inbox of the version of this library, and the role "
                 "inbox.grant_consume().";
}

static Failure failure_of(const StatementError& error) {
    const Diagnostics& found = error.diagnostics();
    return {.error = found.message,
            .sqlstate = error.sqlstate(),
            .detail = found.detail,
            .hint = found.hint,
            .context = found.context};
}

Failure failure_of_event() {
    try {
        throw;
    } catch (const ConnectionLost&) {
        throw;
    } catch (const StatementError& error) {
        if (error.whose() == Whose::own || is_conflict(error) || is_trouble(error))
            throw;
        return failure_of(error);
    } catch (const DatabaseError& error) {
        return {error.what(), error.sqlstate()};
    } catch (const PermanentFailure& error) {
        return {error.what(), "P0001", true};
    } catch (const std::exception& error) {
        return {error.what(), "P0001"};
    } catch (...) {
        return {"the handler threw something that is not a std::exception", "P0001"};
    }
}

Connection& connect(const Shared& shared, std::optional<Connection>& connection) {
    if (connection)
        return *connection;
    PGconn* made = nullptr;
    try {
        made = shared.connect();
    } catch (const std::exception& error) {
        throw ConnectionLost(error.what());
    }
    return connection.emplace(made, outbox::SessionKind::handlers,
                              shared.options.prepare_statements, shared.give_up,
                              shared.options.log);
}

void send_position(const Shared& shared, Connection& connection, const Position& position,
                   const std::string& saver) {
    if (const Parameter published = time_literal(position.published_at))
        connection.send(
            Whose::own, "SELECT inbox.save_offset($1, $2, $3, $4::timestamptz, $5, $6)",
            {shared.options.name, position.subscription, clean_utf8(position.message_id), published,
             saver, clean_utf8(position.incarnation)});
}

static void set_trace(Connection& connection, std::string_view traceparent,
                      std::string_view tracestate) {
    connection.send(Whose::own,
                    "SELECT pg_catalog.set_config('inbox.traceparent', $1, true), "
                    "pg_catalog.set_config('inbox.tracestate', $2, true)",
                    {std::string(traceparent), std::string(tracestate)});
}

// The next event of the transaction may have no trace, so the settings are emptied again. A rollback
// does the same.
void handle(const Shared& shared, Connection& connection, const Event& event) {
    const bool is_traced = !event.traceparent().empty();
    if (is_traced)
        set_trace(connection, event.traceparent(), event.tracestate());
    HandlerTransaction transaction(connection);
    shared.handler(transaction, event);
    transaction.check();
    connection.restore_session();
    if (is_traced)
        set_trace(connection, "", "");
}

// ------------------------------------------------------------------------------------------------
// A batch
// ------------------------------------------------------------------------------------------------

Applier::Applier(Shared& shared, Source& source, std::string name)
    : shared_(shared),
      source_(source),
      name_(std::move(name)),
      pauses_(shared.options.retry_base, shared.options.retry_max),
      conflict_pauses_(milliseconds{10}, milliseconds{1000}) {}

Connection& Applier::connection() {
    if (connection_)
        return *connection_;
    connect(shared_, connection_);
    if (std::exchange(connected_before_, true))
        shared_.counters.database_reconnects++;
    return *connection_;
}

// Such an event cannot be recorded under its id, and no later version could handle it. It gets
// another id and becomes a dead letter.
static void refuse_malformed(Item& item) {
    Delivery& delivery = item.delivery;
    if (is_uuid(delivery.event.id))
        return;
    item.failure = {"the id of the event is not a UUID: \"" + delivery.event.id + '"', "22P02",
                    true};
    item.result = HandlerResult::failed;
    delivery.event.id = made_uuid(delivery.source, delivery.message_id);
}

// Items of one line are next to each other.
static bool is_behind_failure(std::span<Item> items, const Item& item) {
    if (&item == items.data())
        return false;
    const Item& before = *(&item - 1);
    return before.line == item.line &&
           (before.result == HandlerResult::failed || before.result == HandlerResult::behind);
}

static std::vector<Item*> open_items(std::span<Item> items) {
    std::vector<Item*> open;
    for (Item& item : items) {
        if (item.result == HandlerResult::open && is_behind_failure(items, item))
            item.result = HandlerResult::behind;
        if (item.result == HandlerResult::open)
            open.push_back(&item);
    }
    return open;
}

void Applier::apply(std::span<Item> items) {
    in_doubt_ = one_by_one_ = false;
    std::ranges::for_each(items, refuse_malformed);
    for (;;) {
        try {
            apply_open(items);
            report_failures(items);
            pauses_.reset();
            return;
        } catch (const ConnectionLost& error) {
            // The answer to one COMMIT may get lost, but not to one after the other.
            one_by_one_ |= std::exchange(at_work_, false) && (!committing_ || in_doubt_);
            count_doubt();
            shared_.log(Level::warning, std::string("the database is lost: ") + error.what());
        } catch (const StatementError& error) {
            if (is_fatal(error))
                throw DatabaseError(error.sqlstate(),
                                    std::string(error.what()) + "\nHINT: " + hint_of_fatal(error));
            shared_.log(Level::warning, std::string("the database failed: ") + error.what() +
                                            " (SQLSTATE " + error.sqlstate() + ")");
        }
        connection_.reset();
        if (shared_.stop.wait(pauses_.next()))
            return;
    }
}

// Repeating the batch shows whether it was committed: begin_events() waits until the old
// transaction has ended, and then finds its events.
void Applier::count_doubt() {
    if (std::exchange(committing_, false)) {
        in_doubt_ = true;
        shared_.counters.in_doubt++;
    }
}

void Applier::apply_open(std::span<Item> items) {
    const std::vector<Item*> open = open_items(items);
    const bool has_trouble = std::ranges::any_of(open, [this](const Item* item) {
        return shared_.failed.contains(item->delivery.event.id);
    });
    if (open.empty() || (!has_trouble && !one_by_one_ && try_at_once(open)))
        return;
    apply_carefully(items);
}

// ------------------------------------------------------------------------------------------------
// All at once
// ------------------------------------------------------------------------------------------------

bool Applier::try_at_once(Items items) {
    try {
        apply_at_once(items);
        return true;
    } catch (const StatementError& error) {
        if (!is_conflict(error))
            failure_of_event();  // throws if it is not a failure of the event
        connection().roll_back();
        // A pooler, or a change of a table, made a prepared statement unusable.
        if (error.sqlstate() == "26000" || error.sqlstate() == "0A000")
            connection().forget_statements();
    } catch (...) {
        failure_of_event();
        connection().roll_back();
    }
    return false;
}

void Applier::apply_at_once(Items items) {
    const auto began = Clock::now();
    began_ = std::chrono::system_clock::now();
    at_work_ = false;
    const std::vector<bool> is_new = begin_events(items);
    at_work_ = true;
    for (std::size_t i = 0; i < items.size(); i++) {
        if (!is_new[i])
            continue;
        try {
            handle(shared_, connection(), items[i]->delivery.event);
        } catch (...) {
            // If the handler has committed, it has committed the ids of the events behind it as
            // well.
            if (connection().is_idle())
                for (std::size_t behind = i + 1; behind < items.size(); behind++)
                    items[behind]->owed = is_new[behind];
            throw;
        }
    }
    commit(items);
    for (std::size_t i = 0; i < items.size(); i++)
        items[i]->result =
            is_new[i] || in_doubt_ ? HandlerResult::applied : HandlerResult::duplicate;
    note_committed(items, began);
}

std::vector<bool> Applier::begin_events(Items items) {
    std::string ids = "{";
    for (const Item* item : items)
        ids.append(ids.size() > 1 ? "," : "").append(item->delivery.event.id);
    connection().send(Whose::own, "BEGIN");
    const Result result = connection().run(
        Whose::own, "SELECT inbox.begin_events($1, $2::uuid[], $3)",
        {shared_.options.name, ids + "}", clean_utf8(items.front()->delivery.source)});
    std::vector<bool> is_new;
    for (const char c : result.text(0, 0))  // '{t,f,t}'
        if (c == 't' || c == 'f')
            is_new.push_back(c == 't');
    is_new.resize(items.size());
    return is_new;
}

void Applier::commit(Items items) {
    std::vector<const Delivery*> deliveries;
    for (const Item* item : items)
        deliveries.push_back(&item->delivery);
    if (!deliveries.empty())
        for (const Position& position : source_.positions(deliveries))
            send_position(shared_, connection(), position, name_);
    // COMMIT can fail only because of constraints that handlers deferred.
    connection().send(Whose::handler, "COMMIT");
    committing_ = true;
    try {
        const Result result = connection().finish();
        committing_ = false;
        if (std::string_view(PQcmdStatus(result.native())) != "COMMIT")
            throw StatementError(Whose::handler, "25P02", "the transaction was rolled back");
    } catch (const StatementError&) {
        committing_ = false;
        throw;
    }
}

void Applier::note_committed(Items items, Clock::time_point began) {
    Counters& counters = shared_.counters;
    const Time now = std::chrono::time_point_cast<Time::duration>(std::chrono::system_clock::now());
    const auto since = [now](Time time) {
        return std::chrono::duration_cast<std::chrono::microseconds>(now - time);
    };
    std::vector<std::chrono::microseconds> latencies;
    latencies.reserve(items.size());
    for (const Item* item : items) {
        counters.applied += item->result == HandlerResult::applied;
        counters.duplicates += item->result == HandlerResult::duplicate;
        const Time occurred_at = item->delivery.event.occurred_at;
        if (item->result == HandlerResult::applied && occurred_at != Time{})
            latencies.push_back(since(occurred_at));
    }
    counters.latencies.add(latencies);
    counters.settled += items.size();
    counters.transactions++;
    counters.times.add(std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began));
    for (const Item* item : items)
        if (item->result == HandlerResult::applied)
            tell(*item, {});
    at_work_ = false;
    if (items.empty())
        return;
    if (const Time occurred_at = items.back()->delivery.event.occurred_at; occurred_at != Time{})
        counters.recent_latencies.add(since(occurred_at));
    if (items.back()->delivery.published_at != Time{})
        counters.lag_ms =
            std::chrono::duration_cast<milliseconds>(now - items.back()->delivery.published_at)
                .count();
}

// The event is settled, whatever the observer does.
void Applier::tell(const Item& item, std::string_view error) noexcept {
    if (!shared_.options.observer)
        return;
    try {
        shared_.options.observer({.consumer = shared_.options.name,
                                  .event = item.delivery.event,
                                  .began = began_,
                                  .ended = std::chrono::system_clock::now(),
                                  .error = error});
    } catch (const std::exception& failure) {
        shared_.log(Level::warning, std::string("the observer failed: ") + failure.what());
    } catch (...) {
        shared_.log(Level::warning, "the observer failed");
    }
}

// ------------------------------------------------------------------------------------------------
// One by one
// ------------------------------------------------------------------------------------------------

// A piece is done again event by event if it does not commit although each event succeeded. The
// same happens, sooner or later, to a piece with conflicts.
void Applier::apply_carefully(std::span<Item> items) {
    std::size_t limit = one_by_one_ ? 1 : max_savepoints;
    unsigned conflicts = 0;
    for (std::vector<Item*> open; open = open_items(items), !open.empty();) {
        const Items piece = Items(open).first(std::min(limit, open.size()));
        std::optional<Failure> failure;
        try {
            apply_piece(items, piece);
            conflicts = 0;
            continue;
        } catch (const ConnectionLost& error) {
            if (one_by_one_ && at_work_)
                blame(*piece[0], error);
            throw;
        } catch (const StatementError& error) {
            if (!is_conflict(error))
                failure = failure_of_event();
            else if (++conflicts > max_conflicts && piece.size() == 1)
                failure = failure_of(error);
        }
        connection().roll_back();
        if (failure && piece.size() == 1) {
            piece[0]->failure = *failure;
            piece[0]->result = HandlerResult::failed;
        } else if (!failure && shared_.stop.wait(conflict_pauses_.after(conflicts))) {
            return;
        }
        limit = failure ? 1 : std::max<std::size_t>(limit / 2, 1);
    }
}

void Applier::apply_piece(std::span<Item> items, Items piece) {
    const auto began = Clock::now();
    began_ = std::chrono::system_clock::now();
    at_work_ = false;
    std::vector<Item*> done;
    try {
        connection().send(Whose::own, "BEGIN");
        for (Item* item : piece) {
            if (is_behind_failure(items, *item))
                item->result = HandlerResult::behind;
            else
                apply_under_savepoint(*item);
            if (is_done(item->result))
                done.push_back(item);
        }
        end_failures(done);
        commit(done);
    } catch (...) {
        for (Item* item : piece)
            item->result = HandlerResult::open;
        throw;
    }
    for (const Item* item : done)
        shared_.failed.remove(item->delivery.event.id);
    note_committed(done, began);
}

void Applier::apply_under_savepoint(Item& item) {
    connection().send(Whose::own, "SAVEPOINT inbox_event");
    const Result is_new = connection().run(
        Whose::own, "SELECT inbox.begin_event($1, $2::uuid, $3)",
        {shared_.options.name, item.delivery.event.id, clean_utf8(item.delivery.source)});
    at_work_ = true;
    if (is_new.text(0, 0) != "t" && !item.owed) {
        connection().send(Whose::own, "RELEASE SAVEPOINT inbox_event");
        item.result = in_doubt_ ? HandlerResult::applied : HandlerResult::duplicate;
        return;
    }
    if (std::optional<Failure> failure = try_handler(item.delivery.event)) {
        // Counts as a statement of the handler, which may have ended the transaction.
        connection().discard();
        connection().run(Whose::handler, "ROLLBACK TO SAVEPOINT inbox_event");
        connection().restore_session();
        connection().send(Whose::own, "RELEASE SAVEPOINT inbox_event");
        item.failure = std::move(*failure);
        item.result = HandlerResult::failed;
    } else {
        item.result = HandlerResult::applied;
    }
}

std::optional<Failure> Applier::try_handler(const Event& event) {
    try {
        handle(shared_, connection(), event);
        connection().run(Whose::handler, "RELEASE SAVEPOINT inbox_event");
        return {};
    } catch (...) {
        return failure_of_event();
    }
}

void Applier::end_failures(Items done) {
    std::vector<std::string> ids;
    for (const Item* item : done)
        if (shared_.failed.contains(item->delivery.event.id))
            ids.push_back(item->delivery.event.id);
    if (!ids.empty())
        connection().send(Whose::own, "SELECT inbox.end_failure($1, $2::uuid[])",
                          {shared_.options.name, array_literal(ids)});
}

// ------------------------------------------------------------------------------------------------
// Failures
// ------------------------------------------------------------------------------------------------

// Another attempt follows unless the event has done it too often.
void Applier::blame(Item& item, const ConnectionLost& error) {
    if (++item.losses < max_losses)
        return;
    item.losses = 0;
    item.failure = {
        std::string("the connection was lost while the event was applied: ") + error.what(),
        "08006"};
    item.result = HandlerResult::failed;
}

void Applier::report_failures(std::span<Item> items) {
    for (Item& item : items)
        if (item.result == HandlerResult::failed && !item.reported)
            report_failure(item);
}

static Parameter number(std::optional<std::int64_t> value) {
    return value ? Parameter(std::to_string(*value)) : std::nullopt;
}

// Returns whether the database gets all texts of the event as they are.
static bool has_clean_texts(const Event& event) {
    const auto is_clean = [](const std::string& text) { return clean_utf8(text) == text; };
    return is_clean(event.topic) && is_clean(event.aggregate_type) &&
           is_clean(event.aggregate_id) && is_clean(event.type) && is_clean(event.ordering_key) &&
           is_clean(event.content_type) &&
           std::ranges::all_of(event.headers, [&](const auto& header) {
               return is_clean(header.first) && is_clean(header.second);
           });
}

// The parameters of inbox.fail_event(), which stores them when the event becomes a dead letter.
static std::vector<Parameter> parameters_of_failure(const ConsumerOptions& options,
                                                    const Delivery& delivery,
                                                    const Failure& failure, bool incomplete) {
    const Event& event = delivery.event;
    Parameter occurred_at = time_literal(event.occurred_at);
    if (!occurred_at)
        occurred_at = time_literal(delivery.published_at);
    if (!occurred_at)
        occurred_at = "now";
    const bool has_source_id = event.source_event_id && is_uuid(*event.source_event_id);
    return {options.name,
            clean_utf8(delivery.source),
            event.id,
            occurred_at,
            number(event.version),
            std::to_string(event.schema_version),
            has_source_id ? event.source_event_id : std::nullopt,
            clean_utf8(event.topic),
            clean_utf8(event.aggregate_type),
            clean_utf8(event.aggregate_id),
            clean_utf8(event.type),
            clean_utf8(event.ordering_key),
            clean_utf8(event.content_type),
            headers_to_json(event.headers),
            event.payload ? bytes(*event.payload) : std::nullopt,
            clean_utf8(failure.error),
            failure.sqlstate,
            failure.permanent ? "true" : "false",
            options.max_attempts > 0 ? number(options.max_attempts) : std::nullopt,
            clean_utf8(failure.detail),
            clean_utf8(failure.hint),
            clean_utf8(failure.context),
            incomplete || !has_clean_texts(event) ? "true" : "false"};
}

static bool fail_event(Connection& connection, const ConsumerOptions& options,
                       const Delivery& delivery, const Failure& failure, bool incomplete = false) {
    const Result dead =
        connection.run(Whose::own,
                       "SELECT inbox.fail_event($1, $2, $3::uuid, "
                       "$4::timestamptz, NULL::bigint, $5::bigint, $6::integer, "
                       "$7::uuid, $8, $9, $10, $11, $12, $13, $14::jsonb, "
                       "$15::bytea, $16, $17, $18::boolean, $19::integer, "
                       "$20, $21, $22, $23::boolean)",
                       parameters_of_failure(options, delivery, failure, incomplete));
    return dead.text(0, 0) == "t";
}

// Characters that every encoding of a database has.
static std::string in_ascii(std::string text) {
    std::ranges::replace_if(
        text, [](char c) { return c < ' ' || c > '~'; }, '?');
    return text;
}

// What identifies an event, in case the database does not take the rest: a header, a text or a time that it
// cannot have.
static Delivery without_content(const Delivery& delivery) {
    Delivery bare;
    bare.source = in_ascii(delivery.source);
    bare.event.id = delivery.event.id;
    // An altered key could be that of other events.
    if (const std::string& key = delivery.event.ordering_key; key == in_ascii(key))
        bare.event.ordering_key = key;
    return bare;
}

// Class 22 is about data, 54 about limits.
static bool is_about_data(const StatementError& error) {
    return error.sqlstate().starts_with("22") || error.sqlstate().starts_with("54");
}

// Returns whether the event is a dead letter now. No event may escape from being counted.
bool Applier::record_failure(const Item& item) {
    try {
        return fail_event(connection(), shared_.options, item.delivery, item.failure);
    } catch (const StatementError& error) {
        if (!is_about_data(error))
            throw;
        connection().roll_back();
        const Failure failure{
            .error = in_ascii(item.failure.error),
            .sqlstate = item.failure.sqlstate,
            .permanent = item.failure.permanent,
            .detail =
                in_ascii(std::string("The event is not kept, because the database refuses it: ") +
                         error.what())};
        return fail_event(connection(), shared_.options, without_content(item.delivery), failure,
                          true);
    }
}

void Applier::report_failure(Item& item) {
    const bool dead = record_failure(item);
    const std::string& id = item.delivery.event.id;
    item.reported = true;
    tell(item, item.failure.error.empty() ? "failed" : item.failure.error);
    shared_.counters.failures++;
    if (dead) {
        item.result = HandlerResult::dead;
        shared_.failed.remove(id);
        shared_.counters.dead++;
    } else {
        item.pause = pauses_.after(shared_.failed.add(id) - 1);
    }
    shared_.log(
        Level::warning,
        "event " + id +
            (item.result == HandlerResult::dead ? " becomes a dead letter: " : " failed: ") +
            item.failure.error + " (SQLSTATE " + item.failure.sqlstate + ")");
}

}  // namespace inbox
