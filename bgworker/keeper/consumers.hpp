// Reads the consumers of pg_inbox that processors of this server run.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

struct RunnableConsumer {
    int32 id;
    Oid role;  // the role that its handlers run as
    const char* name;
};

// Calls `visit` for each of them, in a transaction of the caller. The tables of pg_inbox may belong
// to a role that need not be trusted and may have altered them. So this runs no code of that role,
// and nothing in the tables may end the process. Each refused consumer is logged once.
void visit_runnable_consumers(void (*visit)(const RunnableConsumer& consumer));

// Returns whether the last call refused any, or one has in the last minutes. Another keeper would log
// that once more, so this one must not leave.
bool remembers_refusals();

}  // namespace outbox
