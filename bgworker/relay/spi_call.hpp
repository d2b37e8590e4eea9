// Carries calls of a relay to the database by SPI (core/relay/calls.hpp). Relays outside the server
// send the same bytes over a connection: values pass the functions with which types are sent and
// received, and texts are in UTF-8.
#pragma once

#include "core/sql/call.hpp"
#include "core/sql/copied_rows.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// To be called once by the process, outside a transaction.
void prepare_calls();

// Needs a transaction of begin_sql_work(). Adds the answer to `rows`, which belong to the process.
void run_call(const sql::Call& call, sql::CopiedRows& rows);

}  // namespace outbox
