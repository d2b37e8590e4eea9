// The type of functions that connect the library to a database.
#pragma once

#include <functional>

#include <libpq-fe.h>

namespace inbox {

// Returns a new connection, which the library then owns and finishes.
//
// If the attempt fails, return the failed connection as PQconnectdb() does: the library reports its
// error message and tries again later. Set connect_timeout, because the library waits for the
// function. Called from several threads at once. The server of a consumer's own database is trusted:
// the library does not limit what libpq reads from it.
using ConnectionFactory = std::function<PGconn*()>;

}  // namespace inbox
