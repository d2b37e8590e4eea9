// Keeps the transactions of a destination that takes events exactly once in outbox.transaction.
// sql/pg_outbox/transaction.sql defines the rows; its functions do the work.
//
// All functions need a transaction of begin_sql_work() and the lock of the cursor.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "bgworker/relay/spi_call.hpp"
#include "core/relay/noted.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

using TransactionNumbers = std::span<const std::optional<std::int64_t>>;

struct Recovered {
    int64 doubtful;  // events that the destination may have, of transactions it has forgotten
    int64 unknown;   // transactions that it has, and that are not in the table
};

// Applies what the destination knows when a relay starts.
Recovered recover_transactions(const char* destination, TransactionNumbers committed);

// Adds the positions of events that the destination has to `recorded`, which stays in order.
void add_delivered_positions(const char* destination, std::vector<std::int64_t>& recorded);

// Locks the cursor and writes the row of a transaction that is about to be committed. The row is on
// disk once the transaction of the call has committed.
CallOutcome note_transaction(const Transaction& transaction);

}  // namespace outbox
