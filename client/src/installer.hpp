// inbox::install() with other scripts than those of this library, for tests.
#pragma once

#include "inbox/install.hpp"
#include "scripts.hpp"

namespace inbox {

Installed install(PGconn* connection, const Scripts& scripts);

}  // namespace inbox
