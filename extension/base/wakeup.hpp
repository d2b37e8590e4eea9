// Waking workers when a transaction commits.
//
// A session calls wake_at_commit(). One transaction callback per process acts on it after the commit,
// when other snapshots can see the rows. The callback allocates nothing and cannot fail, because an
// error there would be a PANIC. The only lock it may take is that of the shared state, for a moment,
// if the transaction held a database (release_hold()).
//
// Protocol, without locks. For new work (an event, a message):
//
//   worker    begin_looking(): writes wanted = true; full fence; takes a snapshot and looks
//   session   commits; full fence; reads wanted; if it is true, exchanges it for false and sets the
//             worker's latch
//
// The fences order both sides, so at least one of them sees the other: the snapshot has the commit, or
// the session finds `wanted`. While a worker is busy `wanted` is false, and a commit only reads.
//
// For changed configuration (a destination, a subscription, the extension itself):
//
//   session   commits; writes reload = true; sets the latch; then reads `database` again
//   worker    exchanges reload for false; then reads the catalogs
//   keeper    when it leaves: clears `database`; then reads `reload`
//
// If a keeper leaves at that moment, either it sees `reload` and stays, or the session sees that the
// database has no keeper, and tells the launcher, which starts one.
#pragma once

#include <cstdint>

#include "extension/base/pg.hpp"

namespace outbox {

enum WakeTarget : std::uint32_t {
    WakeRelays = 1,      // of this database: there are events
    WakeProcessors = 2,  // of this database: there are messages
    WakeKeeper = 4,      // of this database: a destination, subscription or extension changed
    WakeSegments = 8,    // the keeper: events were read or settled
    WakeBackfills = 16,  // of this database: the same
    WakeConsumers = 32,  // the keeper and processors of this database: a subscription changed
};

void wake_at_commit(std::uint32_t targets) noexcept;

// Before PREPARE TRANSACTION, and after COMMIT or ROLLBACK PREPARED, of the transaction of this name:
// the commit does what the first statement would have done had it been one.
void note_prepare(const char* name) noexcept;
void note_prepared_end(const char* name, bool commits) noexcept;

// At commit the launcher is told of a database that this transaction creates.
void tell_of_database_at_commit(Oid database) noexcept;

// Tells the launcher to look at a database, the next time it wakes.
void mark_changed(Oid database) noexcept;
void wake_launcher() noexcept;

// By the keeper, now and then: the workers of this database look at their configuration, in case
// something changed that nobody told them of.
void tell_workers_to_look() noexcept;

// By a relay: events were read or settled, so that the log may need the keeper of this database,
// and backfills may go on.
void tell_keeper_of_progress() noexcept;

// From _PG_init.
void register_transaction_callback();

}  // namespace outbox
