// Wakes workers when a transaction commits.
//
// A session calls wake_at_commit(). After the commit, when other snapshots can see the rows, one
// transaction callback per process wakes the workers. The callback allocates nothing and cannot
// fail, because an error there would be a PANIC. It takes no lock, except for a moment that of the
// shared state if the transaction held a database (release_hold()).
//
// The protocol needs no locks. For new work (an event, a message):
//
//   worker    begin_looking(): writes wanted = true; full fence; takes a snapshot and looks
//   session   commits; full fence; reads wanted; if it is true, exchanges it for false and sets the
//             worker's latch
//
// The fences order both sides, so that at least one of them sees the other: the worker's snapshot
// has the commit, or the session finds `wanted` true. While a worker is busy, `wanted` is false and
// a commit only reads it. Several sessions may find it true; the exchange lets only one of them set
// the latch.
//
// For changed configuration (a destination, a subscription, the extension itself), with
// sequentially consistent reads and writes:
//
//   session   commits; writes reload = true; sets the latch; then reads `database` again
//   worker    exchanges reload for false; then reads the catalogs
//   keeper    when it leaves: clears `database`; then reads `reload`
//
// If a keeper leaves at that moment, it sees `reload` and marks the database as changed, or the
// session sees that the database has no keeper and marks it itself. The launcher then starts
// another keeper.
#pragma once

#include <cstdint>

#include "extension/base/pg.hpp"

namespace outbox {

enum WakeTarget : std::uint32_t {
    WakeRelays = 1,      // relays of this database: there are events
    WakeProcessors = 2,  // processors of this database: there are messages
    WakeKeeper = 4,      // all of this database: a destination, subscription or extension changed
    WakeSegments = 8,    // the keeper: events were read or settled
    WakeBackfills = 16,  // backfills of this database: the same
    WakeConsumers = 32,  // the keeper and processors of this database: a subscription changed
};

void wake_at_commit(std::uint32_t targets) noexcept;

// To be called before PREPARE TRANSACTION, and after COMMIT or ROLLBACK PREPARED, with the name of
// the transaction. The commit then wakes the workers that a commit without PREPARE would have
// woken.
void note_prepare(const char* name) noexcept;
void note_prepared_end(const char* name, bool commits) noexcept;

// At commit, tells the launcher of a database that this transaction creates.
void tell_of_database_at_commit(Oid database) noexcept;

// Makes the launcher look at a database the next time it wakes.
void mark_changed(Oid database) noexcept;
void wake_launcher() noexcept;

// The keeper calls this now and then: the workers of this database read their configuration again,
// in case nobody told them of a change.
void tell_workers_to_look() noexcept;

// A relay calls this when it has read or settled events: the keeper may have to tend the log, and
// backfills may go on.
void tell_keeper_of_progress() noexcept;

// Called from _PG_init.
void register_transaction_callback();

}  // namespace outbox
