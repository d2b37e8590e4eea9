#include "sinks/postgresql/connection.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "core/late.hpp"
#include "core/libpq_environment.hpp"
#include "core/libpq_session.hpp"
#include "core/powerful_role.hpp"
#include "core/signals.hpp"
#include "core/small_file.hpp"
#include "core/text.hpp"
#include "core/text_values.hpp"

namespace outbox {

PostgresqlConnection::PostgresqlConnection(const PostgresqlOptions& options, const Clock& clock)
    : options_(options), clock_(clock), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

PostgresqlConnection::~PostgresqlConnection() {
    close();
    if (epoll_ >= 0)
        ::close(epoll_);
}

void PostgresqlConnection::start() {
    deadline_ = clock_.now() + options_.limits.connect;
    stage_ = Stage::login;
    if (LoginStep::one_is_left_over()) {
        failure_ = "the destination asked for a login that takes too long to compute";
        return;
    }
    if (!options_.needs_password_because.empty() && options_.password.empty()) {
        failure_ = "password is required, in the user mapping or in relay.toml: " +
                   options_.needs_password_because;
        return;
    }
    stage_ = Stage::address;
    const std::string& host = options_.host;
    const bool is_socket = host.starts_with('/') || host.starts_with('@');
    if (is_socket) {
        if (options_.allowed_hosts.allows_sockets())
            start_connection("");
        else
            failure_ = options_.allowed_hosts.refusal_of_socket(host);
        return;
    }
    resolver_ = std::make_unique<Resolver>(host);
    watch(resolver_->descriptor(), EPOLLIN);
}

void PostgresqlConnection::step(Micros now) {
    if (stage_ == Stage::closed || stage_ == Stage::open)
        return;
    if (failure_.empty() && connection_ == nullptr)
        resolve();
    if (failure_.empty() && connection_ != nullptr)
        poll();
    if (failure_.empty() && stage_ != Stage::open && now >= deadline_)
        failure_ = no_connection_within(options_.limits.connect);
}

void PostgresqlConnection::close() noexcept {
    unwatch();
    resolver_.reset();
    if (login_step_ != nullptr && login_step_->give_up())
        connection_ = nullptr;
    login_step_.reset();
    if (connection_ != nullptr)
        PQfinish(std::exchange(connection_, nullptr));
    socket_.push();  // libpq's goodbye
    socket_.close();
    stage_ = Stage::closed;
    asked_ = false;
    counted_to_ = 0;
    deadline_ = never;
    failure_.clear();
}

// -------------------------------------------------------------------------------------------------
// Connecting
// -------------------------------------------------------------------------------------------------

void PostgresqlConnection::resolve() {
    if (!ready_now())
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

// Both are separated by commas. If no address is left, failure_ has the reason.
std::string PostgresqlConnection::allowed_among(std::string_view addresses) {
    std::string allowed;
    while (!addresses.empty()) {
        const std::string_view text = addresses.substr(0, addresses.find(','));
        addresses.remove_prefix(std::min(addresses.size(), text.size() + 1));
        const std::optional<Address> address = Address::parse(text);
        if (address && options_.allowed_hosts.allows_reserved(options_.host, *address))
            allowed.append(allowed.empty() ? "" : ",").append(text);
        else if (address)
            failure_ = options_.allowed_hosts.refusal(*address, options_.host);
    }
    if (!allowed.empty())
        failure_.clear();
    return allowed;
}

// `addresses` has the addresses of the host, separated by commas; libpq tries one after the other.
// It is empty if the host is a directory of sockets.
void PostgresqlConnection::start_connection(const std::string& addresses) {
    if (std::optional<std::string> why = unusable_file()) {
        stage_ = Stage::tls;
        failure_ = std::move(*why);
        return;
    }
    stage_ = Stage::connection;
    std::string hosts = options_.host;  // repeated for each address
    for (const char c : addresses)
        if (c == ',')
            hosts += ',' + options_.host;
    LibpqParameters parameters = {
        {"host", hosts},
        {"port", options_.port},
        {"dbname", options_.database},
        {"user", options_.role},
        {"client_encoding", "UTF8"},
        {"fallback_application_name", "pg_outbox " + options_.destination},
    };
    auto add = [&](const std::string& name, const std::string& value) {
        if (!value.empty())
            parameters.emplace_back(name, value);
    };
    add("hostaddr", addresses);
    add("password", options_.password);
    add("sslcert", options_.ssl_cert);
    add("sslkey", options_.ssl_key);
    for (const auto& [name, value] : options_.parameters)
        add(name, value);

    std::string failure;
    const std::optional<ConnectionTexts> texts = connection_texts(parameters, failure);
    if (!texts) {
        fail(std::move(failure));
        return;
    }
    const SignalsBlocked blocked;
    connection_ = PQconnectStartParams(texts->names.data(), texts->values.data(), 0);
    if (connection_ == nullptr || PQstatus(connection_) == CONNECTION_BAD) {
        take_error();
        return;
    }
    // By default libpq writes notices to stderr, which is the server log.
    PQsetNoticeReceiver(
        connection_, [](void*, const PGresult*) {}, nullptr);
    watch(PQsocket(connection_), EPOLLOUT);
}

// libpq opens files by name, and would wait for a pipe.
std::optional<std::string> PostgresqlConnection::unusable_file() const {
    for (const std::string& path : options_.files())
        if (const std::optional<Error> error = check_file(path))
            return error->message;
    return std::nullopt;
}

static PostgresqlConnection::Stage stage_of(ConnStatusType status) {
    switch (status) {
        case CONNECTION_NEEDED:
        case CONNECTION_STARTED:
        case CONNECTION_MADE:
            return PostgresqlConnection::Stage::connection;
        case CONNECTION_SSL_STARTUP:
        case CONNECTION_GSS_STARTUP:
            return PostgresqlConnection::Stage::tls;
        default:
            return PostgresqlConnection::Stage::login;
    }
}

void PostgresqlConnection::poll() {
    if (!ready_now())
        return;
    if (asked_) {
        take_power();
        return;
    }
    unwatch();
    if (login_step_ == nullptr)
        start_login_step();
    else
        take_login_step();
}

void PostgresqlConnection::start_login_step() {
    stage_ = stage_of(PQstatus(connection_));
    if (!insert_socket() || !pull())
        return;
    login_step_ = std::make_unique<LoginStep>(connection_);
    watch(login_step_->descriptor(), EPOLLIN);
}

bool PostgresqlConnection::insert_socket() {
    if (!stand_between(connection_, socket_))
        failure_ = std::string("could not stand between libpq and the destination: ") +
                   std::strerror(errno);
    return failure_.empty();
}

void PostgresqlConnection::take_login_step() {
    const PostgresPollingStatusType status = login_step_->status();
    login_step_.reset();
    socket_.push();
    if (status == PGRES_POLLING_FAILED) {
        take_error();
        return;
    }
    if (status == PGRES_POLLING_READING && socket_.has_input()) {
        start_login_step();
        return;
    }
    watch(socket_.descriptor() >= 0 ? socket_.descriptor() : PQsocket(connection_),
          status == PGRES_POLLING_READING && !socket_.is_blocked() ? EPOLLIN : EPOLLOUT);
    if (!failure_.empty())
        return;
    if (status == PGRES_POLLING_OK)
        logged_in();
    else
        stage_ = stage_of(PQstatus(connection_));
}

void PostgresqlConnection::logged_in() {
    stage_ = Stage::login;
    if (!options_.needs_password_because.empty() && !PQconnectionUsedPassword(connection_)) {
        failure_ = "the destination asked for no password, and " + options_.needs_password_because;
        return;
    }
    PQsetnonblocking(connection_, 1);
    // Details of errors quote rows, which contain events, and errors are shown to monitors.
    PQsetErrorVerbosity(connection_, PQERRORS_TERSE);
    ask_for_power();
}

// -------------------------------------------------------------------------------------------------
// Settings, and powerful roles
// -------------------------------------------------------------------------------------------------

// Code of others runs there, and who owns it could change between a question and a call. So the role
// must have no right worth stealing.
void PostgresqlConnection::ask_for_power() {
    const std::string question = std::string(take_time) + "SELECT (" + std::string(power_question) +
                                 "), " + set_session(connection_, SessionKind::relay, "false");
    asked_ = true;
    if (PQsendQuery(connection_, question.c_str()))
        flush();
    else
        take_error();
}

void PostgresqlConnection::take_power() {
    read();
    while (failure_.empty() && !PQisBusy(connection_)) {
        PGresult* result = PQgetResult(connection_);
        if (result == nullptr) {
            answered();
            stage_ = Stage::open;
            return;
        }
        const ExecStatusType status = PQresultStatus(result);
        if (status == PGRES_TUPLES_OK && PQntuples(result) == 1 && PQnfields(result) >= 1) {
            if (const std::string power = printable(PQgetvalue(result, 0, 0)); !power.empty())
                failure_ = "role \"" + options_.role + "\" " + power +
                           " there, and code of others would run with its rights (create a role "
                           "there, SELECT inbox.grant_send('...'), and name it here: CREATE USER "
                           "MAPPING ... OPTIONS (user '...'))";
        } else if (status != PGRES_COMMAND_OK) {
            failure_ = one_line(PQresultErrorMessage(result));
        }
        PQclear(result);
    }
}

// -------------------------------------------------------------------------------------------------
// Talking
// -------------------------------------------------------------------------------------------------

bool PostgresqlConnection::consume() {
    if (!ready_now())
        return false;
    read();
    return failure_.empty();
}

void PostgresqlConnection::read() {
    if (!pull())
        return;
    do {
        if (!PQconsumeInput(connection_)) {
            take_error();
            return;
        }
    } while (socket_.has_input());
    while (PGnotify* notification = PQnotifies(connection_))
        PQfreemem(notification);
    flush();
}

// libpq keeps rows, parameters and partial messages, so that it must not get more than an answer
// has. Returns false if it would.
bool PostgresqlConnection::pull() {
    if (socket_.descriptor() >= 0 && !socket_.has_input())
        socket_.pull();
    if (socket_.received() - counted_to_ > max_answer)
        failure_ = "the answer of the destination is too long";
    return failure_.empty();
}

void PostgresqlConnection::flush() {
    if (!flush_libpq(connection_, socket_)) {
        take_error();
        return;
    }
    rewatch(socket_.is_blocked() ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void PostgresqlConnection::take_error() {
    if (connection_ == nullptr)
        failure_ = "out of memory";
    else if (socket_.error() != 0)
        failure_ =
            std::string("could not receive data from server: ") + std::strerror(socket_.error());
    else
        failure_ = one_line(PQerrorMessage(connection_));
}

void PostgresqlConnection::watch(int descriptor, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    watched_ = epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0 ? descriptor : -1;
    watched_events_ = events;
    if (watched_ < 0)
        failure_ = "could not watch a connection";
}

void PostgresqlConnection::rewatch(std::uint32_t events) {
    if (watched_ < 0 || events == watched_events_)
        return;
    epoll_event event{};
    event.events = watched_events_ = events;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, watched_, &event);
}

void PostgresqlConnection::unwatch() noexcept {
    if (watched_ >= 0)
        epoll_ctl(epoll_, EPOLL_CTL_DEL, watched_, nullptr);
    watched_ = -1;
}

bool PostgresqlConnection::ready_now() const {
    epoll_event event{};
    return epoll_wait(epoll_, &event, 1, 0) > 0;
}

void prepare_process_for_libpq() {
    LoginStep::prepare_process();
    forget_libpq_environment();
}

std::string one_line(std::string_view message) {
    const std::string line = printable(message);
    return line.empty() ? "connection lost" : line;
}

}  // namespace outbox
