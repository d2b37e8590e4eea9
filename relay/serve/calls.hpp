// Calls that only a relay outside the server makes, and their answers: functions of
// sql/pg_outbox/relay.sql. core/relay/calls.hpp has those that all relays make.
//
// Functions that read an answer return std::nullopt if it does not have the expected form, as from
// another version of pg_outbox.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/relay/calls.hpp"
#include "relay/configure/destinations.hpp"
#include "relay/database/statement.hpp"

namespace outbox::relay::calls {

using namespace outbox::calls;

// -------------------------------------------------------------------------------------------------
// The database
// -------------------------------------------------------------------------------------------------

// The id of the server process, and what makes the role of the session powerful, or NULL.
Call who_am_i();
Call listen();
Call settings();
Call destinations();

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
Call beat(const Beat& beat);

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
Call probe(const Probe& probe);

// Answer about the window since one of the frontiers.
struct Probed {
    std::string frontier;
    Snapshot end;
    std::int64_t events = 0;
    std::int64_t last_position = 0;
    std::vector<std::int32_t> wanted;  // destinations that select some of the events
};
std::vector<Probed> probed_of(const Rows& rows);

Call wake(const Uuid& id);
Call release_destination_lock(std::int32_t number);
Call report(const Uuid& id, std::string_view figures);
Call maintain();
Call leave(const Uuid& id);

// -------------------------------------------------------------------------------------------------
// A destination
// -------------------------------------------------------------------------------------------------

Call take(const Uuid& id, std::int32_t number, bool direct);

// The part of the log that is looked through.
struct Range {
    Snapshot from;
    Settled settled;
};
Call look(std::int32_t number, const std::vector<std::string>& patterns, const Range& range,
          std::int32_t max_events, const Evaluation& evaluation);
struct Found {
    bool held = false;  // the destination has to wait before it may read on
    Snapshot end;
    std::int64_t events = 0;
    std::int64_t last_position = 0;
};
// Reads the first row.
std::optional<Found> found_of(const Rows& rows);

Call entries(std::int32_t number, const std::vector<std::string>& patterns, const Range& range,
             const Snapshot& end, std::int64_t after, std::int32_t max_entries);
// Fails with `rewritten` if an event of these positions has another place by now, or none.
inline constexpr std::string_view rewritten = "55000";
Call rows(std::int32_t number, std::int32_t segment, std::span<const Place> places,
          const std::vector<std::int64_t>& positions, const Evaluation& evaluation);

}  // namespace outbox::relay::calls
