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
// nothing happens when it has it already. The connection, which must be in no transaction, needs
// CREATE on the database; its user becomes the owner, and is who can upgrade. A schema inbox of his
// that is empty will do, where somebody else has to create it. Whoever installs at the same time
// waits.
//
// Throws DatabaseError. 55000: it is an extension (then ALTER EXTENSION pg_inbox UPDATE is the way),
// or newer than this library; 42501: somebody else owns it; 42P06: the schema is not pg_inbox's.
Installed install(PGconn* connection);

}  // namespace inbox
