// How the library gets its connections.
#pragma once

#include <functional>

#include <libpq-fe.h>

namespace inbox {

// Makes a new connection with a timeout that suits (connect_timeout). One that failed is returned
// as it is: its error is reported and the next attempt made later. Called from several threads.
using ConnectionFactory = std::function<PGconn*()>;

}  // namespace inbox
