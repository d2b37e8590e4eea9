// The identity of this installation, which is outside the data directory so that a copy of the data does
// not have it: see sql/pg_outbox/copy.sql.
#pragma once

namespace outbox {

// Reads outbox.identity_file, once, when the server starts. A file that cannot be read is reported, and
// gives no identity.
void read_own_identity();

}  // namespace outbox
