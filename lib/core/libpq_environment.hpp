// The settings of libpq in the environment of a process: PGHOST, PGPASSFILE, PGSERVICE and others.
#pragma once

namespace outbox {

// Removes them, so that no connection gets any. It must come before there are threads.
void forget_libpq_environment();

}  // namespace outbox
