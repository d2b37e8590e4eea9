// The postgresql sink: batches of events into the inbox of another database, by inbox.receive().
//
// One connection in libpq's pipeline mode, so that the next batch travels while the server works on
// the one before. Each batch is BEGIN, receive, COMMIT, with no synchronisation point between
// batches: after an error the server skips everything up to the next one, which never comes. So no
// batch takes effect after one that failed, and the order holds. The connection is then given up,
// and with it all batches in flight; those whose COMMIT was not confirmed may have happened, and
// the inbox ignores what it has already.
#include <libpq-fe.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>

#include "core/signals.hpp"
#include "core/text.hpp"
#include "sinks/postgresql/binary_arrays.hpp"
#include "sinks/postgresql/resolver.hpp"
#include "sinks/sink.hpp"

namespace outbox {

namespace {

constexpr std::size_t default_batch = 1000;
constexpr std::size_t batches_in_flight = 4;
constexpr int statements_per_batch = 3;

constexpr const char* receive_name = "outbox_receive";
constexpr const char* receive_statement =
    "SELECT inbox.receive($1::text, $2::text, $3::uuid[], $4::timestamptz[], $5::int8[], "
    "$6::int8[], $7::int4[], $8::uuid[], $9::text[], $10::text[], $11::text[], $12::text[], "
    "$13::text[], "
    "$14::text[], $15::jsonb[], $16::bytea[])";

// The array parameters of inbox.receive(), from $3 on, filled from the events of a batch.
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
        : destination_(context.destination),
          clock_(context.clock),
          epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

    ~PostgresqlSink() override {
        disconnect();
        if (epoll_ >= 0)
            close(epoll_);
    }

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events =
                    destination_.batch_size > 0 ? destination_.batch_size : default_batch,
                .max_batch_bytes = 8 * 1024 * 1024,
                .max_batches = batches_in_flight,
                .ordered = true};
    }

    int descriptor() const noexcept override { return epoll_; }

    Micros deadline() const noexcept override {
        if (!failure_.empty() || (state_ == State::disconnected && !batches_.empty()))
            return 0;
        return deadline_;
    }

    void submit(Batch& batch) noexcept override {
        try {
            batches_.push_back(&batch);
            if (state_ == State::ready)
                send(batch);
        } catch (...) {
            failure_ = "out of memory";
        }
    }

    void step(Micros now, std::vector<Outcome>& outcomes) noexcept override {
        try {
            advance(now, outcomes);
        } catch (...) {
            failure_ = "out of memory";
        }
        if (!failure_.empty())
            give_up(outcomes);
    }

  private:
    enum class State {
        disconnected,
        resolving,   // the host name
        connecting,  // PQconnectPoll
        preparing,   // the statement
        ready,       // pipeline mode
    };

    // Moves on as far as it goes. Failures are left in failure_.
    void advance(Micros now, std::vector<Outcome>& outcomes) {
        if (state_ == State::disconnected && !batches_.empty())
            connect();
        if (state_ == State::resolving)
            resolve();
        if (state_ == State::connecting)
            poll_connection();
        if (state_ == State::preparing)
            poll_prepared();
        if (state_ == State::ready)
            exchange(outcomes);
        if (failure_.empty() && now >= deadline_)
            failure_ = state_ == State::ready ? "no answer in time" : "no connection in time";
    }

    // -- connecting ---------------------------------------------------------------------------

    const std::string* url_parameter(std::string_view name) const {
        for (const auto& [key, value] : destination_.url.query)
            if (key == name)
                return &value;
        return nullptr;
    }

    void connect() {
        deadline_ = clock_.now() + destination_.connect_timeout;
        if (destination_.password_required && destination_.password.empty()) {
            failure_ = "password is required: the owner of the foreign server is not a superuser";
            return;
        }
        const Url& url = destination_.url;
        const std::string* host = url_parameter("host");
        host_ = host != nullptr ? *host : url.host.empty() ? destination_.local_host : url.host;
        const bool is_socket = host_.starts_with('/') || host_.starts_with('@');
        if (is_socket) {
            if (destination_.allowed_hosts.empty() ||
                destination_.allowed_hosts.allows("localhost"))
                start_connection("");
            else
                failure_ = "Unix socket \"" + host_ + "\" is not allowed (outbox.allowed_hosts)";
            return;
        }
        resolver_ = std::make_unique<Resolver>(host_);
        watch(resolver_->descriptor(), EPOLLIN);
        state_ = State::resolving;
    }

    void resolve() {
        epoll_event event{};
        if (epoll_wait(epoll_, &event, 1, 0) <= 0)
            return;
        unwatch();
        const std::string addresses = resolver_->addresses();
        const std::string allowed = allowed_among(addresses);
        if (addresses.empty())
            failure_ = resolver_->error();
        else if (!allowed.empty())
            start_connection(allowed);
        resolver_.reset();
    }

    // Both separated by commas. When none is left, failure_ says why.
    std::string allowed_among(std::string_view addresses) {
        if (destination_.allowed_hosts.empty())
            return std::string(addresses);
        std::string allowed;
        while (!addresses.empty()) {
            const std::string_view text = addresses.substr(0, addresses.find(','));
            addresses.remove_prefix(std::min(addresses.size(), text.size() + 1));
            const std::optional<Address> address = Address::parse(text);
            if (address && destination_.allowed_hosts.allows(host_, *address))
                allowed.append(allowed.empty() ? "" : ",").append(text);
            else if (address)
                failure_ = not_allowed(*address, host_);
        }
        if (!allowed.empty())
            failure_.clear();
        return allowed;
    }

    // `addresses`: of the host, separated by commas; libpq tries one after the other. Empty: the
    // host is a directory of sockets.
    void start_connection(const std::string& addresses) {
        const Url& url = destination_.url;
        const std::string* port = url_parameter("port");
        const bool local = url.host.empty() && url_parameter("host") == nullptr;
        std::string hosts = host_;  // as many as there are addresses
        for (const char c : addresses)
            if (c == ',')
                hosts += ',' + host_;
        std::vector<std::pair<const char*, std::string>> parameters = {
            {"host", hosts},
            {"port", port != nullptr     ? *port
                     : !url.port.empty() ? url.port
                     : local             ? destination_.local_port
                                         : "5432"},
            {"dbname", database()},
            {"user", !destination_.user.empty() ? destination_.user
                     : url.user                 ? *url.user
                                                : destination_.default_user},
            {"client_encoding", "UTF8"},
            {"fallback_application_name", "pg_outbox " + destination_.name},
        };
        auto add = [&](const char* name, const std::string& value) {
            if (!value.empty())
                parameters.emplace_back(name, value);
        };
        add("hostaddr", addresses);
        add("password", destination_.password);
        add("sslcert", destination_.ssl_cert);
        add("sslkey", destination_.ssl_key);
        for (const auto& [name, value] : url.query)
            if (name != "host" && name != "port")
                add(name.c_str(), value);

        std::vector<const char*> names, values;
        for (const auto& [name, value] : parameters) {
            names.push_back(name);
            values.push_back(value.c_str());
        }
        names.push_back(nullptr);
        values.push_back(nullptr);
        const SignalsBlocked blocked;
        connection_ = PQconnectStartParams(names.data(), values.data(), 0);
        if (connection_ == nullptr || PQstatus(connection_) == CONNECTION_BAD) {
            failure_ = connection_error();
            return;
        }
        state_ = State::connecting;
        watch(PQsocket(connection_), EPOLLOUT);
    }

    std::string database() const {
        const std::string_view segment = std::string_view(destination_.url.path).substr(1);
        return percent_decoded(segment).value_or(std::string(segment));
    }

    void poll_connection() {
        if (!ready_now())
            return;
        const SignalsBlocked blocked;
        const PostgresPollingStatusType status = PQconnectPoll(connection_);
        if (status == PGRES_POLLING_FAILED) {
            failure_ = connection_error();
            return;
        }
        // The socket may be another one than before, under the same number.
        unwatch();
        watch(PQsocket(connection_), status == PGRES_POLLING_READING ? EPOLLIN : EPOLLOUT);
        if (status == PGRES_POLLING_OK)
            prepare();
    }

    void prepare() {
        if (destination_.password_required && !PQconnectionUsedPassword(connection_)) {
            failure_ =
                "the destination asked for no password, and the owner of the foreign server is not "
                "a superuser";
            return;
        }
        PQsetnonblocking(connection_, 1);
        // Details quote rows, which are events; monitors see the error.
        PQsetErrorVerbosity(connection_, PQERRORS_TERSE);
        if (!PQsendPrepare(connection_, receive_name, receive_statement, 0, nullptr)) {
            failure_ = connection_error();
            return;
        }
        state_ = State::preparing;
        flush();
    }

    void poll_prepared() {
        if (!consume())
            return;
        while (!PQisBusy(connection_)) {
            PGresult* result = PQgetResult(connection_);
            if (result == nullptr) {
                if (!failure_.empty())
                    return;
                enter_pipeline();
                return;
            }
            if (PQresultStatus(result) != PGRES_COMMAND_OK)
                failure_ = explain_missing_inbox(result);
            PQclear(result);
        }
    }

    static std::string explain_missing_inbox(const PGresult* result) {
        const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
        const bool missing = state != nullptr && (std::string_view(state) == "3F000" ||
                                                  std::string_view(state) == "42883");
        return one_line(PQresultErrorMessage(result)) +
               (missing ? " (run CREATE EXTENSION pg_inbox in the destination)" : "");
    }

    void enter_pipeline() {
        if (!PQenterPipelineMode(connection_)) {
            failure_ = connection_error();
            return;
        }
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
        values[0] = destination_.consumer.empty() ? nullptr : destination_.consumer.c_str();
        values[1] = destination_.source.c_str();
        const auto arrays = parameters_.bytes();
        for (std::size_t i = 0; i < arrays.size(); i++) {
            values[2 + i] = arrays[i].data();
            lengths[2 + i] = static_cast<int>(arrays[i].size());
            formats[2 + i] = 1;
        }
        const bool sent =
            PQsendQueryParams(connection_, "BEGIN", 0, nullptr, nullptr, nullptr, nullptr, 0) &&
            PQsendQueryPrepared(connection_, receive_name, static_cast<int>(count), values.data(),
                                lengths.data(), formats.data(), 0) &&
            PQsendQueryParams(connection_, "COMMIT", 0, nullptr, nullptr, nullptr, nullptr, 0) &&
            PQsendFlushRequest(connection_);
        if (!sent) {
            failure_ = connection_error();
            return;
        }
        if (deadline_ == never)
            deadline_ = clock_.now() + destination_.request_timeout;
        flush();
    }

    // Results come in the order of statements: BEGIN, receive, COMMIT, each ended by a null.
    void exchange(std::vector<Outcome>& outcomes) {
        if (!consume())
            return;
        int nulls = 0;  // two in a row: there is nothing behind them
        while (!batches_.empty() && nulls < 2 && !PQisBusy(connection_)) {
            PGresult* result = PQgetResult(connection_);
            if (result == nullptr) {
                nulls++;
                continue;
            }
            nulls = 0;
            const ExecStatusType status = PQresultStatus(result);
            if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
                failure_ = one_line(PQresultErrorMessage(result));
                refused_ = is_about_the_data(PQresultErrorField(result, PG_DIAG_SQLSTATE));
            }
            PQclear(result);
            if (!failure_.empty())
                return;
            if (++statements_done_ == statements_per_batch) {
                statements_done_ = 0;
                outcomes.push_back({.batch = batches_.front()});
                batches_.pop_front();
                deadline_ = batches_.empty() ? never : clock_.now() + destination_.request_timeout;
            }
        }
    }

    // Reads what has come. False: nothing has, or the connection is lost.
    bool consume() {
        if (!ready_now())
            return false;
        if (!PQconsumeInput(connection_)) {
            failure_ = connection_error();
            return false;
        }
        flush();
        return true;
    }

    void flush() {
        const int left = PQflush(connection_);
        if (left < 0)
            failure_ = connection_error();
        else
            rewatch(left > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }

    // Errors that another attempt with the same data would meet again, by SQLSTATE class: wrong
    // data, a violated constraint, a limit, an error raised by a trigger.
    static bool is_about_the_data(const char* state) {
        static constexpr std::array<std::string_view, 6> classes{"21", "22", "23",
                                                                 "44", "54", "P0"};
        return state != nullptr && std::find(classes.begin(), classes.end(),
                                             std::string_view(state).substr(0, 2)) != classes.end();
    }

    void give_up(std::vector<Outcome>& outcomes) noexcept {
        disconnect();
        Fate fate = refused_ ? Fate::refused : Fate::unavailable;
        for (Batch* batch : batches_) {
            outcomes.push_back({batch, fate, failure_});
            fate = Fate::undone;
        }
        batches_.clear();
        failure_.clear();
        refused_ = false;
    }

    void disconnect() noexcept {
        unwatch();
        resolver_.reset();
        if (connection_ != nullptr)
            PQfinish(connection_);
        connection_ = nullptr;
        state_ = State::disconnected;
        deadline_ = never;
        statements_done_ = 0;
    }

    // -- the descriptor -----------------------------------------------------------------------

    void watch(int descriptor, std::uint32_t events) {
        epoll_event event{};
        event.events = events;
        watched_ = epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0 ? descriptor : -1;
        watched_events_ = events;
        if (watched_ < 0)
            failure_ = "could not watch a connection";
    }

    void rewatch(std::uint32_t events) {
        if (watched_ < 0 || events == watched_events_)
            return;
        epoll_event event{};
        event.events = watched_events_ = events;
        epoll_ctl(epoll_, EPOLL_CTL_MOD, watched_, &event);
    }

    void unwatch() noexcept {
        if (watched_ >= 0)
            epoll_ctl(epoll_, EPOLL_CTL_DEL, watched_, nullptr);
        watched_ = -1;
    }

    bool ready_now() const {
        epoll_event event{};
        return epoll_wait(epoll_, &event, 1, 0) > 0;
    }

    std::string connection_error() const {
        return connection_ != nullptr ? one_line(PQerrorMessage(connection_)) : "out of memory";
    }

    static std::string one_line(std::string_view message) {
        std::string line;
        for (char c : trim(message))
            line += c == '\n' ? ' ' : c;
        return line.empty() ? "connection lost" : line;
    }

    const Destination& destination_;
    const Clock& clock_;
    const int epoll_;
    int watched_ = -1;
    std::uint32_t watched_events_ = 0;

    State state_ = State::disconnected;
    std::string host_;
    std::unique_ptr<Resolver> resolver_;
    PGconn* connection_ = nullptr;
    Micros deadline_ = never;
    std::string failure_;
    bool refused_ = false;  // because of an event in the first batch

    std::deque<Batch*> batches_;  // in flight, or waiting for the connection
    int statements_done_ = 0;     // of the first one
    ReceiveParameters parameters_;
};

}  // namespace

}  // namespace outbox

extern "C" __attribute__((visibility("default"))) outbox::Sink* outbox_create_sink(
    const outbox::SinkContext& context) noexcept {
    try {
        return new outbox::PostgresqlSink(context);
    } catch (...) {
        return nullptr;
    }
}
