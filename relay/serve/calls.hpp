// Statements of the relay and their answers: the functions of sql/pg_outbox/relay.sql.
// answers.
//
// Functions that read an answer return std::nullopt if it does not have the expected form, as from
// another version of pg_outbox.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/endpoints.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/relay/relay.hpp"
#include "relay/configure/destinations.hpp"
#include "relay/database/statement.hpp"

namespace outbox::relay::calls {

enum class Outcome { ok, busy, lost };
std::optional<Outcome> outcome_of(const Rows& rows);

// -------------------------------------------------------------------------------------------------
// The database
// -------------------------------------------------------------------------------------------------

// The id of the server process, and what makes the role of the session powerful, or NULL.
Statement who_am_i();
Statement listen();
Statement settings();
Statement destinations();

struct Setting {
    std::string name;
    std::string value;
};
std::vector<Setting> settings_of(const Rows& rows);

// A destination as the database describes it.
struct DestinationRow : relay::DestinationRow {
    std::vector<std::string> patterns;  // LIKE patterns of its topics

    bool operator==(const DestinationRow&) const = default;
};
std::vector<DestinationRow> destinations_of(const Rows& rows);

struct Beat {
    Uuid id{};
    std::string name;
    std::string version;
    Micros lease = 0;
    bool direct = false;
    std::vector<std::int32_t> held{};
    std::vector<std::int64_t> leases{};
    std::vector<std::int32_t> idle{};
    std::vector<std::string> frontiers{};
    bool rest = false;
    std::string identity{};
};
Statement beat(const Beat& beat);

struct BeatAnswer {
    std::string configuration;
    bool resting = false;
    bool holds_lock = false;
    std::vector<std::int32_t> free;
    std::vector<std::int32_t> lost;
    std::vector<std::int32_t> work;
    std::vector<std::int32_t> paused;
    std::vector<std::int64_t> resumed;  // of each of Beat::held
    std::string copy;                   // what the database is a copy of; empty if it is none
};
std::optional<BeatAnswer> beat_of(const Rows& rows);

// Asks about destinations that have found nothing at their last look.
struct Probe {
    std::vector<std::int32_t> numbers{};
    std::vector<std::string> frontiers{};
    std::vector<std::string> patterns{};
    std::vector<std::int32_t> pattern_of{};
};
Statement probe(const Probe& probe);

// Answer about the window since one of the frontiers.
struct Probed {
    std::string frontier;
    Snapshot end;
    std::int64_t events = 0;
    std::int64_t last_position = 0;
    std::vector<std::int32_t> wanted;  // destinations that select some of the events
};
std::vector<Probed> probed_of(const Rows& rows);

Statement wake(const Uuid& id);
Statement release_destination_lock(std::int32_t number);
Statement report(const Uuid& id, std::string_view figures);
Statement maintain();
Statement leave(const Uuid& id);

// -------------------------------------------------------------------------------------------------
// A destination
// -------------------------------------------------------------------------------------------------

// A destination that this process serves, and the token under which it writes.
struct Held {
    std::int32_t number = 0;
    std::int64_t lease = 0;
};

Statement take(const Uuid& id, std::int32_t number, bool direct);
struct Taken {
    std::int64_t lease = 0;
    Cursor cursor{};
};
// Returns std::nullopt if the destination was not free.
std::optional<Taken> taken_of(const Rows& rows, std::int32_t number);

// How the expressions of a destination are evaluated. Without a limit it has no expressions, and all
// texts of its events can be read.
struct Evaluation {
    Micros time_limit = 0;  // for a statement

    bool any() const noexcept { return time_limit > 0; }
};

Statement begin(const Held& held, const Cursor& cursor, const Evaluation& evaluation);
Statement follow(const Held& held);
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

// The part of the log that is looked through.
struct Range {
    Snapshot from;
    Settled settled;
};
Statement look(std::int32_t number, const std::vector<std::string>& patterns, const Range& range,
               std::int32_t max_events, const Evaluation& evaluation);
struct Found {
    bool held = false;  // the destination has to wait before it may read on
    Snapshot end;
    std::int64_t events = 0;
    std::int64_t last_position = 0;
};
// Reads the first row.
std::optional<Found> found_of(const Rows& rows);

Statement entries(std::int32_t number, const std::vector<std::string>& patterns, const Range& range,
                  const Snapshot& end, std::int64_t after, std::int32_t max_entries);
// Fails with `rewritten` if an event of these positions has another place by now, or none.
inline constexpr std::string_view rewritten = "55000";
Statement rows(std::int32_t number, std::int32_t segment, std::span<const Place> places,
               const std::vector<std::int64_t>& positions, const Evaluation& evaluation);

Statement pause(const Held& held, const std::string& why);
Statement save(const Held& held, const Relay& relay);
Statement record(const Held& held, const Uuid& token, Relay& relay);
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
Statement retries(const Held& held, const Uuid& token, std::int32_t hurry, std::int32_t at_most,
                  const Evaluation& evaluation);
struct Retries {
    Micros next_retry = never;  // from now
    std::int64_t hurried = 0;
    std::vector<std::string> freed_keys;  // by retries that the filter does not select
};
Retries retries_of(const Rows& rows);

Statement recover(const Held& held, Relay& relay);
Statement note(const Held& held, const Transaction& transaction);

// Asks for a sink that serves endpoints.
Statement consult(const Held& held, std::string_view question);
std::optional<EndpointAnswer> answer_of(Rows rows);

}  // namespace outbox::relay::calls
