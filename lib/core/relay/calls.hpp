// The calls by which a relay writes, and asks for what it must know: functions of
// sql/pg_outbox/relay.sql, with their arguments and answers. Every home makes the same ones
// (core/relay/home.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/endpoints.hpp"
#include "core/relay/relay.hpp"
#include "core/sql/call.hpp"
#include "core/sql/event_rows.hpp"

namespace outbox::calls {

using sql::Call;
using sql::Rows;

enum class Outcome { ok, busy, lost };
std::optional<Outcome> outcome_of(const Rows& rows);

// A destination that a relay serves, and the token under which it writes.
struct Held {
    std::int32_t number = 0;
    std::int64_t lease = 0;
    bool only_ascii = false;  // texts of peers are stored in ASCII: the database is not in UTF-8
};

// Takes a destination for the worker of a foreign server. Needs no outcome.
Call take_inside(sql::Oid server);
// The answer to a call that takes a destination; std::nullopt if the destination was not free.
struct Taken {
    std::int64_t lease = 0;
    Cursor cursor{};
};
std::optional<Taken> taken_of(const Rows& rows);

// How what is read of events is evaluated: by functions that apply expressions of the destination,
// or make texts readable in a database that is not in UTF-8.
struct Evaluation {
    bool any = false;
    Micros time_limit = 0;  // for a statement over a network

    void limit(Call& call) const noexcept;
};

// Waits for the lock of the cursor.
Call wait(const Held& held);
Call begin(const Held& held, const Cursor& cursor, const Evaluation& evaluation);
Call follow(const Held& held);
// Answer to begin(), follow() and recover(). Members that a call does not return are empty.
struct Begun {
    std::vector<std::int64_t> recorded;
    std::vector<std::string> held_keys;
    bool paused = false;
    std::int64_t resumed = 0;  // as Cursor::resumed
    std::string trouble;       // why the expressions cannot be evaluated; empty if they can
    std::int64_t doubtful = 0;
    std::int64_t unknown = 0;
};
Begun begun_of(const Rows& rows);

Call pause(const Held& held, const std::string& why);
Call save(const Held& held, const Relay& relay);
Call record(const Held& held, const Uuid& token, Relay& relay);
struct Recorded {
    struct Refusal {
        std::int64_t position = 0;
        std::int32_t attempts = 0;
        bool dead = false;
    };
    std::vector<std::string> freed_keys;
    std::vector<Refusal> refusals;
    Micros next_retry = never;  // from now
};
Recorded recorded_of(const Rows& rows);

// Retries taken at a time.
inline constexpr std::int32_t max_retries = 256;
Call retries(const Held& held, const Uuid& token, std::int32_t hurry, std::int32_t at_most,
             const Evaluation& evaluation);
struct Retries {
    Micros next_retry = never;  // from now
    std::int64_t hurried = 0;
    std::vector<std::string> freed_keys;  // by retries that the filter does not select
};
Retries retries_of(const Rows& rows);

Call recover(const Held& held, Relay& relay);
Call note(const Held& held, const Transaction& transaction);

// Asks for a sink that serves endpoints.
Call consult(const Held& held, std::string_view question);
std::optional<EndpointAnswer> answer_of(Rows rows);  // in endpoint_answer.cpp

}  // namespace outbox::calls
