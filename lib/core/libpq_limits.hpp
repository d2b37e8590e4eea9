// Connects and waits for answers with libpq, within limits of time and of bytes: during the login and in
// an answer, libpq takes all that a server sends, for as long as it sends, whatever connect_timeout is.
//
// So a MeteredSocket stands between libpq and the server. libpq must not wait by itself: nothing would
// arrive. Only what libpq does for this file is used, and functions of it that do not block.
//
// There is no source file: not everything that is made of lib/core is linked with libpq.
#pragma once

#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "core/libpq_error.hpp"
#include "core/libpq_session.hpp"
#include "core/metered_socket.hpp"
#include "core/session_mode.hpp"
#include "core/text.hpp"
#include "core/text_values.hpp"

namespace outbox {

// A login takes a few kilobytes.
constexpr std::uint64_t max_login_bytes = 1024 * 1024;

// A connection of libpq, and what stands between it and the server.
struct LibpqConnection {
    PGconn* connection = nullptr;  // as that of PQconnectdbParams(); not if it was given up
    std::unique_ptr<MeteredSocket> socket = std::make_unique<MeteredSocket>();
    std::string failure{};       // empty if it is open
    bool keeps_session = false;  // no pooler gives its server process to others

    LibpqConnection() = default;
    LibpqConnection(LibpqConnection&& other) noexcept
        : connection(std::exchange(other.connection, nullptr)),
          socket(std::move(other.socket)),
          failure(std::move(other.failure)),
          keeps_session(other.keeps_session) {}
    LibpqConnection& operator=(LibpqConnection&& other) noexcept {
        std::swap(connection, other.connection);
        std::swap(socket, other.socket);
        std::swap(failure, other.failure);
        std::swap(keeps_session, other.keeps_session);
        return *this;
    }
    ~LibpqConnection() { close(); }

    void close() noexcept {
        if (connection == nullptr)
            return;
        PQfinish(std::exchange(connection, nullptr));
        socket->push();  // libpq's goodbye
        socket->close();
    }
};

// Sends what libpq has written, as far as the server takes it. Returns false if libpq has failed.
inline bool flush_libpq(PGconn* connection, MeteredSocket& socket) {
    int left = 0;
    do {
        left = PQflush(connection);
        socket.push();
    } while (left > 0 && !socket.is_blocked());
    return left >= 0;
}

// How long is waited: until that time, or until `stop`, a descriptor, is readable.
struct WaitLimit {
    Micros until = never;
    int stop = -1;
};

// Waits until the descriptor is ready. Returns false if the limit was reached.
inline bool wait_for_libpq(int descriptor, short events, const WaitLimit& limit) {
    static constexpr Micros longest = 3'600'000;  // milliseconds
    const SystemClock clock;
    std::array<pollfd, 2> watched{{{descriptor, events, 0}, {limit.stop, POLLIN, 0}}};
    const Micros left = std::max<Micros>(limit.until - clock.now(), 0);
    poll(watched.data(), watched.size(),
         limit.until == never ? -1 : static_cast<int>(std::min((left + 999) / 1000, longest)));
    return watched[1].revents == 0 && clock.now() < limit.until;
}

// -------------------------------------------------------------------------------------------------
// Answers
// -------------------------------------------------------------------------------------------------

struct AnswerLimits {
    std::uint64_t bytes;
    Micros time = never;
};

// Waits until libpq has something to read, and meanwhile sends what libpq has written. `descriptor` is that of
// the connection. Returns false if the limit was reached.
inline bool await_input(int descriptor, MeteredSocket& socket, const WaitLimit& limit) {
    if (socket.has_input())
        return true;
    const bool in_time = wait_for_libpq(
        descriptor, static_cast<short>(socket.is_blocked() ? POLLIN | POLLOUT : POLLIN), limit);
    socket.push();
    if (socket.descriptor() >= 0)
        socket.pull();
    return in_time;
}

// Waits for what the server sends next, and gives libpq a piece of it. Returns why that cannot go on, or
// an empty text; libpq has its own errors.
inline std::string give_to_libpq(LibpqConnection& to, std::uint64_t max_received,
                                 const WaitLimit& limit) {
    MeteredSocket& socket = *to.socket;
    const bool can_go_on = flush_libpq(to.connection, socket);
    const int descriptor = socket.descriptor() >= 0 ? socket.descriptor() : PQsocket(to.connection);
    if (!can_go_on || descriptor < 0)
        return "";
    if (!await_input(descriptor, socket, limit))
        return "the server does not answer";
    return socket.received() > max_received ? "the answer of the server is too long" : "";
}

// Waits until PQgetResult() does not. Returns why that cannot be, or an empty text; libpq has its own
// errors. After a failure nothing may be done with the connection but to close it.
inline std::string await_result(LibpqConnection& from, std::uint64_t max_received,
                                const WaitLimit& limit) {
    while (PQisBusy(from.connection) != 0) {
        if (std::string failure = give_to_libpq(from, max_received, limit); !failure.empty())
            return failure;
        if (PQconsumeInput(from.connection) == 0) {
            flush_libpq(from.connection, *from.socket);  // so that PQgetResult() does not wait
            break;
        }
    }
    return "";
}

// Returns the last result of what was sent, as PQexec() does, or nullptr with a failure of await_result().
inline PGresult* last_result(LibpqConnection& from, AnswerLimits limits, std::string& failure) {
    PGconn* const connection = from.connection;
    const std::uint64_t max_received = from.socket->received() + limits.bytes;
    const WaitLimit limit{limits.time == never ? never : SystemClock{}.now() + limits.time};
    PGresult* last = nullptr;
    for (;;) {
        failure = await_result(from, max_received, limit);
        if (!failure.empty()) {
            PQclear(last);
            return nullptr;
        }
        PGresult* result = PQgetResult(connection);
        if (result == nullptr)
            return last;
        PQclear(last);
        last = result;
        const ExecStatusType status = PQresultStatus(last);
        if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH ||
            PQstatus(connection) == CONNECTION_BAD)
            return last;
    }
}

// -------------------------------------------------------------------------------------------------
// Connecting
// -------------------------------------------------------------------------------------------------

inline std::string libpq_value(const PQconninfoOption* options, std::string_view name) {
    for (; options != nullptr && options->keyword != nullptr; options++)
        if (options->keyword == name && options->val != nullptr)
            return options->val;
    return "";
}

// Moves the first element of a list to its end.
inline std::string rotated(const std::string& list) {
    const std::size_t comma = list.find(',');
    return comma == std::string::npos ? list : list.substr(comma + 1) + ',' + list.substr(0, comma);
}

// Returns nullptr with a failure.
inline PGconn* start_libpq(const LibpqParameters& parameters, bool expand_dbname,
                           std::string& failure) {
    const std::optional<ConnectionTexts> texts = connection_texts(parameters, failure);
    if (!texts)
        return nullptr;
    PGconn* connection =
        PQconnectStartParams(texts->names.data(), texts->values.data(), expand_dbname ? 1 : 0);
    if (connection == nullptr)
        failure = "out of memory";
    // By default libpq writes notices to stderr, as they come.
    if (connection != nullptr)
        PQsetNoticeReceiver(
            connection, [](void*, const PGresult*) {}, nullptr);
    return connection;
}

// To be called between two steps of a login. libpq connects by itself, and may do so again, for the
// next address or without TLS. The server's user is checked (requirepeer) before anything is sent, on
// the socket itself. Returns false, with errno, if there are no descriptors left.
inline bool stand_between(PGconn* connection, MeteredSocket& socket) {
    const ConnStatusType status = PQstatus(connection);
    return socket.descriptor() >= 0 || status == CONNECTION_NEEDED ||
           status == CONNECTION_STARTED || status == CONNECTION_MADE ||
           socket.insert(PQsocket(connection));
}

// Waits until libpq can do its next step, and gives it what has arrived. Returns false if it is too
// late.
inline bool await_login(PGconn* connection, MeteredSocket& socket, bool reads,
                        const WaitLimit& limit) {
    const bool stands_between = socket.descriptor() >= 0;
    const int descriptor = stands_between ? socket.descriptor() : PQsocket(connection);
    if (reads)
        return await_input(descriptor, socket, limit);
    return stands_between || wait_for_libpq(descriptor, POLLOUT, limit);
}

// Returns false if it has to be given up, with `failure`. Otherwise libpq has succeeded or failed.
inline bool log_in(LibpqConnection& connected, Micros time_limit) {
    PGconn* const connection = connected.connection;
    MeteredSocket& socket = *connected.socket;
    std::string place;
    Micros until = never;
    for (auto wanted = PGRES_POLLING_WRITING;
         wanted != PGRES_POLLING_OK && wanted != PGRES_POLLING_FAILED;
         wanted = PQconnectPoll(connection), socket.push()) {
        const std::string here = std::string(PQhost(connection)) + " " + PQhostaddr(connection) +
                                 " " + PQport(connection);
        if (here != std::exchange(place, here) && time_limit != never)
            until = SystemClock{}.now() + time_limit;
        std::string why;
        if (!stand_between(connection, socket))
            why = std::strerror(errno);
        else if (!await_login(connection, socket, wanted == PGRES_POLLING_READING, {until}))
            why = "timeout expired";
        else if (socket.received() > max_login_bytes)
            why = "the server sends too much";
        if (why.empty())
            continue;
        connected.failure = "connection to server at \"" + printable(PQhost(connection), 200) +
                            "\", port " + printable(PQport(connection), 20) + " failed: " + why;
        return false;
    }
    return true;
}

struct SessionRule {
    SessionKind kind;
    SessionMode mode = SessionMode::automatic;
};

// Makes the session one of ours. Closes it if that fails. Returns false if the server has ended it, or
// cancelled the statement: perhaps because of a limit that the statement takes away.
inline bool begin_session(LibpqConnection& connected, const SessionRule& rule, Micros time_limit) {
    PGconn* const connection = connected.connection;
    PQsetnonblocking(connection, 1);
    const std::string is_local = rule.mode == SessionMode::direct   ? "false"
                                 : rule.mode == SessionMode::pooled ? "true"
                                                                    : runs_elsewhere(connection);
    const std::string text = std::string(take_time) + "SELECT " + is_local + ", " +
                             set_session(connection, rule.kind, is_local);
    const std::unique_ptr<PGresult, void (*)(PGresult*)> result(
        PQsendQuery(connection, text.c_str()) == 1
            ? last_result(connected, {max_login_bytes, time_limit}, connected.failure)
            : nullptr,
        PQclear);
    if (PQresultStatus(result.get()) == PGRES_TUPLES_OK && PQntuples(result.get()) == 1) {
        connected.keeps_session = std::string_view(PQgetvalue(result.get(), 0, 0)) == "f";
        return true;
    }
    if (connected.failure.empty() && PQresultStatus(result.get()) == PGRES_FATAL_ERROR)
        connected.failure = error_of(connection);
    if (connected.failure.empty())
        connected.failure = "the server does not answer as PostgreSQL does";
    const char* const sqlstate = PQresultErrorField(result.get(), PG_DIAG_SQLSTATE);
    const bool met_limit = PQstatus(connection) == CONNECTION_BAD ||
                           (sqlstate != nullptr && std::string_view(sqlstate) == "57014");
    connected.close();
    return !met_limit;
}

// Where idle sessions end at once, or statements are cancelled at once, that may meet ours before the
// statement that takes these limits away. This adds the options with which it cannot happen, and returns
// false if they are there. Not every session begins so: there are poolers that refuse options.
inline bool take_limits(LibpqParameters& parameters, std::string options, int server_version) {
    const std::size_t before = options.size();
    for (const auto& [name, since] :
         {std::pair{"idle_session_timeout", 140000}, {"statement_timeout", 0}})
        if (server_version >= since && options.find(name) == std::string::npos)
            options.append(" -c ").append(name).append("=0");
    const bool has_more = options.size() > before;
    parameters.emplace_back("options", std::move(options));
    return has_more;
}

// Logs in to the first host that answers, and makes the session one of ours. If the server has ended or
// cancelled it before that, `again` is set, and the parameters are those of another attempt.
inline LibpqConnection log_in_to_any(LibpqParameters& parameters, bool expand_dbname,
                                     const std::optional<SessionRule>& rule, bool& again) {
    LibpqConnection connected;
    for (std::size_t hosts = 1, tried = 0; tried < hosts; tried++) {
        connected.connection = start_libpq(parameters, expand_dbname, connected.failure);
        PGconn* const connection = connected.connection;
        if (connection == nullptr)
            return connected;
        const std::unique_ptr<PQconninfoOption, void (*)(PQconninfoOption*)> options(
            PQconninfo(connection), PQconninfoFree);
        const auto seconds_given = parse_integer(libpq_value(options.get(), "connect_timeout"));
        const Micros limit = seconds_given && *seconds_given > 0
                                 ? seconds(std::max<std::int64_t>(*seconds_given, 2))
                                 : never;
        connected.failure.clear();
        if (PQstatus(connection) == CONNECTION_BAD || log_in(connected, limit)) {
            const int version = PQserverVersion(connection);
            if (PQstatus(connection) != CONNECTION_OK)
                connected.failure = error_of(connection);
            else if (rule)
                again = !begin_session(connected, *rule, limit) &&
                        take_limits(parameters, libpq_value(options.get(), "options"), version);
            return connected;
        }
        connected.close();
        // libpq would go on with the next host by itself.
        for (const char* list : {"host", "hostaddr", "port"}) {
            const std::string value = libpq_value(options.get(), list);
            hosts = std::max(
                hosts, static_cast<std::size_t>(std::count(value.begin(), value.end(), ',')) + 1);
            if (value.find(',') != std::string::npos)
                parameters.emplace_back(list, rotated(value));
        }
    }
    return connected;
}

// Connects as PQconnectdbParams() does, with the same time limit for each host, connect_timeout. Unlike
// that function it ends in time, and takes no more than max_login_bytes. Every session of our programs
// begins here. Without a rule the session is as the server has made it.
inline LibpqConnection connect_libpq(LibpqParameters parameters, bool expand_dbname,
                                     const std::optional<SessionRule>& rule) {
    bool again = false;
    LibpqConnection first = log_in_to_any(parameters, expand_dbname, rule, again);
    if (!again)
        return first;
    LibpqConnection second = log_in_to_any(parameters, expand_dbname, rule, again);
    return second.failure.empty() ? std::move(second) : std::move(first);
}

}  // namespace outbox
