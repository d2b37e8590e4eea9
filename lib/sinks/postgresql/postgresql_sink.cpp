// The postgresql sink: sends batches of events to the inbox of another database, with
// inbox.receive().
//
// It uses one connection in libpq's pipeline mode, so that the next batch travels while the server
// works on the one before. Each batch is BEGIN, receive, COMMIT. There are no synchronisation
// points between batches: after an error the server skips everything up to the next one, which
// never comes. So no batch takes effect after one that failed, and the order holds. The connection
// is then closed, and all batches in flight fail with it. A batch whose COMMIT was not confirmed
// may have taken effect; the inbox ignores events that it already has.
//
// Without a synchronisation point the server shows a session as active. So there is one when all
// batches have been confirmed and no other follows for a moment.
#include <libpq-fe.h>

#include <algorithm>
#include <array>
#include <deque>

#include "core/late.hpp"
#include "core/sink.hpp"
#include "core/sql/binary_array.hpp"
#include "core/text.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/postgresql/connection.hpp"
#include "sinks/postgresql/receive_statement.hpp"

namespace outbox {

using sql::BinaryArray;

namespace {

constexpr std::size_t batches_in_flight = 4;
constexpr int statements_per_batch = 3;
constexpr Micros pause_before_rest = milliseconds(100);

// The array parameters of inbox.receive(), from $3 on, made from the events of a batch.
class ReceiveParameters {
  public:
    static constexpr std::size_t array_count = 14;

    void fill(const std::vector<Event*>& events) {
        for (BinaryArray* array : all_)
            array->clear();
        for (const Event* event : events)
            add(*event);
    }

    std::array<std::string_view, array_count> bytes() {
        std::array<std::string_view, array_count> result;
        for (std::size_t i = 0; i < all_.size(); i++)
            result[i] = all_[i]->bytes();
        return result;
    }

  private:
    void add(const Event& event) {
        event_ids_.add(event.event_id);
        occurred_at_.add_timestamp(event.occurred_at);
        positions_.add(event.position);
        if (event.has_version)
            versions_.add(event.version);
        else
            versions_.add_null();
        schema_versions_.add(event.schema_version);
        if (event.has_source_event_id)
            source_event_ids_.add(event.source_event_id);
        else
            source_event_ids_.add_null();
        topics_.add(event.topic);
        aggregate_types_.add(event.aggregate_type);
        aggregate_ids_.add(event.aggregate_id);
        event_types_.add(event.event_type);
        ordering_keys_.add(event.ordering_key);
        content_types_.add(event.content_type);
        add_headers(event);
        if (event.has_payload)
            payloads_.add(event.payload);
        else
            payloads_.add_null();
    }

    void add_headers(const Event& event) {
        if (event.headers.empty()) {
            headers_.add_null();
            return;
        }
        json_ = "{";
        for (const Header& header : event.headers) {
            if (json_.size() > 1)
                json_ += ',';
            append_json_string(json_, header.name);
            json_ += ':';
            if (header.kind == Header::Kind::string)
                append_json_string(json_, header.value);
            else
                json_ += header.kind == Header::Kind::null ? "null" : header.value;
        }
        json_ += '}';
        headers_.add_json(json_);
    }

    using Type = BinaryArray::Type;
    BinaryArray event_ids_{Type::uuid}, occurred_at_{Type::timestamptz}, positions_{Type::int8},
        versions_{Type::int8}, schema_versions_{Type::int4}, source_event_ids_{Type::uuid},
        topics_{Type::text}, aggregate_types_{Type::text}, aggregate_ids_{Type::text},
        event_types_{Type::text}, ordering_keys_{Type::text}, content_types_{Type::text},
        headers_{Type::jsonb}, payloads_{Type::bytea};
    const std::array<BinaryArray*, array_count> all_{
        &event_ids_,        &occurred_at_,   &positions_,       &versions_,      &schema_versions_,
        &source_event_ids_, &topics_,        &aggregate_types_, &aggregate_ids_, &event_types_,
        &ordering_keys_,    &content_types_, &headers_,         &payloads_};
    std::string json_;
};

class PostgresqlSink final : public Sink {
  public:
    explicit PostgresqlSink(const SinkContext& context)
        : options_(postgresql_options(context.destination)),
          clock_(context.clock),
          connection_(options_, context.clock) {}

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = options_.batch_size,
                .max_batch_bytes = 8 * 1024 * 1024,
                .max_batches = batches_in_flight,
                .ordered = true};
    }

    int descriptor() const noexcept override { return connection_.descriptor(); }

    Micros deadline() const noexcept override {
        if (failed() || (state_ == State::disconnected && !batches_.empty()))
            return 0;
        return state_ == State::connecting ? connection_.deadline() : std::min(deadline_, rest_at_);
    }

    void submit(Batch& batch) override {
        batches_.push_back(&batch);
        if (state_ == State::ready && !connection_.is_worn_out())
            send(batch);
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        advance(now, outcomes);
        if (failed())
            give_up(outcomes);
    }

  private:
    enum class State {
        disconnected,
        connecting,
        preparing,  // preparing the statement
        ready,      // in pipeline mode
    };

    bool failed() const noexcept { return !connection_.failure().empty(); }

    // Proceeds as far as it can without blocking. Failures are in connection_.
    void advance(Micros now, std::vector<Outcome>& outcomes) {
        if (state_ == State::disconnected && !batches_.empty()) {
            state_ = State::connecting;
            connection_.start();
        }
        if (state_ == State::connecting)
            connect(now);
        if (state_ == State::preparing)
            poll_prepared();
        if (state_ == State::ready)
            exchange(outcomes);
        if (!failed() && now >= rest_at_)
            rest();
        if (!failed() && now >= deadline_)
            connection_.fail(state_ == State::ready
                                 ? no_answer_within(options_.limits.request)
                                 : no_connection_within(options_.limits.connect));
    }

    void connect(Micros now) {
        connection_.step(now);
        if (!failed() && connection_.stage() == PostgresqlConnection::Stage::open)
            prepare();
    }

    // -- preparing ---------------------------------------------------------------------------

    void prepare() {
        state_ = State::preparing;
        deadline_ = connection_.deadline();
        if (PQsendPrepare(connection_.get(), receive_name, receive_statement, 0, nullptr))
            connection_.flush();
        else
            connection_.take_error();
    }

    void poll_prepared() {
        if (!connection_.consume())
            return;
        while (!PQisBusy(connection_.get())) {
            PGresult* result = PQgetResult(connection_.get());
            if (result == nullptr) {
                if (failed())
                    return;
                enter_pipeline();
                return;
            }
            if (PQresultStatus(result) != PGRES_COMMAND_OK)
                connection_.fail(explain_missing_inbox(connection_.get(), result));
            PQclear(result);
        }
    }

    void enter_pipeline() {
        if (!PQenterPipelineMode(connection_.get())) {
            connection_.take_error();
            return;
        }
        connection_.answered();
        state_ = State::ready;
        deadline_ = never;
        for (const Batch* batch : batches_)
            send(*batch);
    }

    // -- batches ------------------------------------------------------------------------------

    void send(const Batch& batch) {
        parameters_.fill(batch.events);
        constexpr std::size_t count = 2 + ReceiveParameters::array_count;
        std::array<const char*, count> values{};
        std::array<int, count> lengths{}, formats{};
        values[0] = options_.consumer.empty() ? nullptr : options_.consumer.c_str();
        values[1] = options_.source.c_str();
        const auto arrays = parameters_.bytes();
        for (std::size_t i = 0; i < arrays.size(); i++) {
            values[2 + i] = arrays[i].data();
            lengths[2 + i] = static_cast<int>(arrays[i].size());
            formats[2 + i] = 1;
        }
        PGconn* pg = connection_.get();
        const bool sent =
            PQsendQueryParams(pg, "BEGIN", 0, nullptr, nullptr, nullptr, nullptr, 0) &&
            PQsendQueryPrepared(pg, receive_name, static_cast<int>(count), values.data(),
                                lengths.data(), formats.data(), 0) &&
            PQsendQueryParams(pg, "COMMIT", 0, nullptr, nullptr, nullptr, nullptr, 0) &&
            PQsendFlushRequest(pg);
        if (!sent) {
            connection_.take_error();
            return;
        }
        sent_++;
        rest_at_ = never;
        if (deadline_ == never)
            deadline_ = clock_.now() + options_.limits.request;
        connection_.flush();
    }

    // Makes the session idle for the server.
    void rest() {
        rest_at_ = never;
        if (!PQpipelineSync(connection_.get())) {
            connection_.take_error();
            return;
        }
        rests_++;
        connection_.flush();
    }

    // Results come in the order of the statements: BEGIN, receive, COMMIT. A null ends each
    // statement.
    void exchange(std::vector<Outcome>& outcomes) {
        if (!connection_.consume())
            return;
        int nulls = 0;  // two in a row mean that no result is left
        while (sent_ + rests_ > 0 && nulls < 2 && !PQisBusy(connection_.get())) {
            PGresult* result = PQgetResult(connection_.get());
            if (result == nullptr) {
                nulls++;
                continue;
            }
            nulls = 0;
            const ExecStatusType status = PQresultStatus(result);
            if (status == PGRES_PIPELINE_SYNC) {
                PQclear(result);
                rests_--;
                connection_.answered();
                continue;
            }
            if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
                connection_.fail(one_line(PQresultErrorMessage(result)));
                refused_ = is_about_the_data(PQresultErrorField(result, PG_DIAG_SQLSTATE));
            } else if (statements_done_ == statements_per_batch - 1 &&
                       std::string_view(PQcmdStatus(result)) != "COMMIT") {
                connection_.fail("the destination rolled the transaction back");
            }
            PQclear(result);
            if (failed())
                return;
            if (++statements_done_ == statements_per_batch) {
                statements_done_ = 0;
                outcomes.push_back({.batch = batches_.front()});
                batches_.pop_front();
                sent_--;
                connection_.answered();
                deadline_ = sent_ == 0 ? never : clock_.now() + options_.limits.request;
                rest_at_ = sent_ == 0 ? clock_.now() + pause_before_rest : never;
            }
        }
        if (sent_ == 0 && connection_.is_worn_out())
            disconnect();  // the waiting batches go over another connection
    }

    void disconnect() noexcept {
        connection_.close();
        state_ = State::disconnected;
        deadline_ = never;
        rest_at_ = never;
        rests_ = 0;
        sent_ = 0;
        statements_done_ = 0;
    }

    // True for errors that would come back with the same data, by SQLSTATE class: invalid data, a
    // violated constraint, a limit, an error raised by a trigger.
    static bool is_about_the_data(const char* state) {
        static constexpr std::array<std::string_view, 6> classes{"21", "22", "23",
                                                                 "44", "54", "P0"};
        return state != nullptr && std::find(classes.begin(), classes.end(),
                                             std::string_view(state).substr(0, 2)) != classes.end();
    }

    void give_up(std::vector<Outcome>& outcomes) {
        Fate fate = refused_ ? Fate::refused : Fate::unavailable;
        for (Batch* batch : batches_) {
            outcomes.push_back({batch, fate, connection_.failure()});
            fate = Fate::undone;
        }
        batches_.clear();
        refused_ = false;
        disconnect();
    }

    const PostgresqlOptions options_;
    const Clock& clock_;
    PostgresqlConnection connection_;

    State state_ = State::disconnected;
    Micros deadline_ = never;  // of the current request over an open connection
    Micros rest_at_ = never;   // when to tell the server that the connection rests
    bool refused_ = false;     // because of an event of the first batch

    std::deque<Batch*> batches_;  // in flight, or waiting for the connection
    std::size_t sent_ = 0;        // the first ones of `batches_`
    std::size_t rests_ = 0;       // synchronisation points that the server has not answered
    int statements_done_ = 0;     // of the first batch
    ReceiveParameters parameters_;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        outbox::prepare_process_for_libpq();
        return new outbox::PostgresqlSink(context);
    });
}
