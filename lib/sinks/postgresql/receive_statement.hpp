// The statement that gives events to the inbox.
#pragma once

#include <libpq-fe.h>

#include <string>

namespace outbox {

constexpr const char* receive_name = "outbox_receive";
constexpr const char* receive_statement =
    "SELECT inbox.receive($1::text, $2::text, $3::uuid[], $4::timestamptz[], $5::int8[], "
    "$6::int8[], $7::int4[], $8::uuid[], $9::text[], $10::text[], $11::text[], $12::text[], "
    "$13::text[], "
    "$14::text[], $15::jsonb[], $16::bytea[])";

// Explains why the statement could not be prepared, and what to do.
std::string explain_missing_inbox(const PGconn* connection, const PGresult* result);

}  // namespace outbox
