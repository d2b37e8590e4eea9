// pg_inbox where CREATE EXTENSION is not to be had: managed databases, or no rights on the server.
#pragma once

#include <string>

#include <libpq-fe.h>

namespace inbox {

struct Installed {
    std::string from;  // the version that was there; empty: none
    std::string to;    // the version that is there now
};

// Creates the schema inbox, or brings it to the version of this library, in one transaction;
// nothing happens when it has it already. The connection's user becomes its owner, and needs CREATE
// on the database. Throws DatabaseError: 55000 it is an extension already (then ALTER EXTENSION
// pg_inbox UPDATE is the way), or newer than this library.
Installed install(PGconn* connection);

}  // namespace inbox
