// Installs pg_inbox where CREATE EXTENSION is not possible: on managed databases, or without access
// to the server's files.
#pragma once

#include <string>

#include <libpq-fe.h>

namespace inbox {

struct Installed {
    std::string from;  // version that was installed before; empty if there was none
    std::string to;    // version that is installed now
};

// Creates the schemas of pg_inbox, or upgrades them to the version of this library, in one
// transaction. Does nothing if they have that version already. Processes that install at the same
// time wait for each other.
//
// The connection must not be in a transaction. Its user needs CREATE on the database, becomes the
// owner, and is the only role that can upgrade later. The schemas `inbox` and `inbox_internal` may
// already exist if they are empty and belong to this user, so that another role can create them.
//
// Throws ConnectionLost, or DatabaseError with one of these SQLSTATEs:
//   25001  the connection is in a transaction
//   42501  the schema belongs to another role
//   42P06  the schema has objects that are not pg_inbox's
//   55000  pg_inbox is installed as an extension (use ALTER EXTENSION pg_inbox UPDATE), or is newer
//          than this library
Installed install(PGconn* connection);

}  // namespace inbox
