// Connects and waits for answers with libpq, within limits of time and of bytes: during the login and in
// an answer, libpq takes all that a server sends, for as long as it sends, whatever connect_timeout is.
//
// Bytes are counted where they wait to be read, before libpq reads them.
//
// There is no source file: not everything that is made of lib/core is linked with libpq.
#pragma once

#include <libpq-fe.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "core/libpq_error.hpp"
#include "core/libpq_session.hpp"
#include "core/session_mode.hpp"
#include "core/text.hpp"

namespace outbox {

// A login takes a few kilobytes.
constexpr std::uint64_t max_login_bytes = 1024 * 1024;

// Counts bytes of a connection.
class LibpqMeter {
  public:
    explicit LibpqMeter(std::uint64_t most) noexcept : most_(most) {}

    // Waits until the connection is ready, or until that time.
    void wait(PGconn* connection, short events, Micros until) {
        pollfd ready{PQsocket(connection), events, 0};
        const Micros left = std::max<Micros>(until - clock_.now(), 0);
        poll(&ready, 1,
             until == never ? -1 : static_cast<int>(std::min((left + 999) / 1000, longest)));
    }
    // Call this before libpq reads. Returns false if there is too much.
    bool allows(PGconn* connection) {
        int waiting = 0;
        if (ioctl(PQsocket(connection), FIONREAD, &waiting) == 0)
            received_ += static_cast<std::uint64_t>(std::max(waiting, 0));
        return received_ <= most_;
    }
    Micros now() const noexcept { return clock_.now(); }

  private:
    static constexpr Micros longest = 3'600'000;  // milliseconds

    const SystemClock clock_;
    const std::uint64_t most_;
    std::uint64_t received_ = 0;
};

// -------------------------------------------------------------------------------------------------
// Answers
// -------------------------------------------------------------------------------------------------

struct AnswerLimits {
    std::uint64_t bytes;
    Micros time = never;
};

// Returns the last result of what was sent, as PQexec() does, or nullptr with a failure. After a failure
// nothing may be done with the connection but to close it.
inline PGresult* last_result(PGconn* connection, AnswerLimits limits, std::string& failure) {
    LibpqMeter meter(limits.bytes);
    const Micros until = limits.time == never ? never : meter.now() + limits.time;
    PGresult* last = nullptr;
    for (;;) {
        while (PQisBusy(connection) != 0) {
            meter.wait(connection, POLLIN, until);
            const bool is_late = meter.now() >= until;
            if (is_late || !meter.allows(connection)) {
                PQclear(last);
                failure =
                    is_late ? "the server does not answer" : "the answer of the server is too long";
                return nullptr;
            }
            if (PQconsumeInput(connection) == 0)
                break;  // PQgetResult() has the error
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

using LibpqParameters = std::vector<std::pair<std::string, std::string>>;

struct LibpqConnection {
    PGconn* connection = nullptr;  // as that of PQconnectdbParams(); not if it was given up
    std::string failure{};         // empty if it is open
    bool keeps_session = false;    // no pooler gives its server process to others
};

struct SessionRule {
    SessionKind kind;
    SessionMode mode = SessionMode::automatic;
};

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

inline PGconn* start_libpq(const LibpqParameters& parameters, bool expand_dbname) {
    std::vector<const char*> names, values;
    for (const auto& [name, value] : parameters) {
        names.push_back(name.c_str());
        values.push_back(value.c_str());
    }
    names.push_back(nullptr);
    values.push_back(nullptr);
    PGconn* connection = PQconnectStartParams(names.data(), values.data(), expand_dbname ? 1 : 0);
    // By default libpq writes notices to stderr, as they come.
    if (connection != nullptr)
        PQsetNoticeReceiver(
            connection, [](void*, const PGresult*) {}, nullptr);
    return connection;
}

// Returns false if it has to be given up, with `failure`. Otherwise libpq has succeeded or failed.
inline bool log_in(PGconn* connection, Micros time_limit, std::string& failure) {
    LibpqMeter meter(max_login_bytes);
    std::string place;
    Micros until = never;
    for (auto wanted = PGRES_POLLING_WRITING;
         wanted != PGRES_POLLING_OK && wanted != PGRES_POLLING_FAILED;
         wanted = PQconnectPoll(connection)) {
        const std::string here = std::string(PQhost(connection)) + " " + PQhostaddr(connection) +
                                 " " + PQport(connection);
        if (here != std::exchange(place, here) && time_limit != never)
            until = meter.now() + time_limit;
        meter.wait(connection, wanted == PGRES_POLLING_READING ? POLLIN : POLLOUT, until);
        const bool is_late = meter.now() >= until;
        if (!is_late && meter.allows(connection))
            continue;
        failure = "connection to server at \"" + printable(PQhost(connection), 200) + "\", port " +
                  printable(PQport(connection), 20) +
                  " failed: " + (is_late ? "timeout expired" : "the server sends too much");
        return false;
    }
    return true;
}

// Makes the session one of ours. Closes it if that fails.
inline void begin_session(LibpqConnection& connected, const SessionRule& rule, Micros time_limit) {
    PGconn* const connection = connected.connection;
    const std::string is_local = rule.mode == SessionMode::direct   ? "false"
                                 : rule.mode == SessionMode::pooled ? "true"
                                                                    : runs_elsewhere(connection);
    const std::string text = std::string(take_time) + "SELECT " + is_local + ", " +
                             set_session(connection, rule.kind, is_local);
    const std::unique_ptr<PGresult, void (*)(PGresult*)> result(
        PQsendQuery(connection, text.c_str()) == 1
            ? last_result(connection, {max_login_bytes, time_limit}, connected.failure)
            : nullptr,
        PQclear);
    if (PQresultStatus(result.get()) == PGRES_TUPLES_OK && PQntuples(result.get()) == 1) {
        connected.keeps_session = std::string_view(PQgetvalue(result.get(), 0, 0)) == "f";
        return;
    }
    if (connected.failure.empty() && PQresultStatus(result.get()) == PGRES_FATAL_ERROR)
        connected.failure = error_of(connection);
    if (connected.failure.empty())
        connected.failure = "the server does not answer as PostgreSQL does";
    PQfinish(std::exchange(connected.connection, nullptr));
}

// Connects as PQconnectdbParams() does, with the same time limit for each host, connect_timeout. Unlike
// that function it ends in time, and takes no more than max_login_bytes. Every session of our programs
// begins here.
inline LibpqConnection connect_libpq(LibpqParameters parameters, bool expand_dbname,
                                     const SessionRule& rule) {
    LibpqConnection connected;
    for (std::size_t hosts = 1, tried = 0; tried < hosts; tried++) {
        PGconn* connection = start_libpq(parameters, expand_dbname);
        if (connection == nullptr) {
            connected.failure = "out of memory";
            return connected;
        }
        const std::unique_ptr<PQconninfoOption, void (*)(PQconninfoOption*)> options(
            PQconninfo(connection), PQconninfoFree);
        const auto seconds_given = parse_integer(libpq_value(options.get(), "connect_timeout"));
        const Micros limit = seconds_given && *seconds_given > 0
                                 ? seconds(std::max<std::int64_t>(*seconds_given, 2))
                                 : never;
        connected.failure.clear();
        if (PQstatus(connection) == CONNECTION_BAD ||
            log_in(connection, limit, connected.failure)) {
            connected.connection = connection;
            if (PQstatus(connection) != CONNECTION_OK)
                connected.failure = error_of(connection);
            else
                begin_session(connected, rule, limit);
            return connected;
        }
        PQfinish(connection);
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

}  // namespace outbox
