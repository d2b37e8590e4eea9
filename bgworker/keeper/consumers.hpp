// What the keeper reads of pg_inbox: the consumers that are to be processed in the server.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

struct RunnableConsumer {
    int32 id;
    Oid role;  // whose rights its handlers have
    const char* name;
};

// Calls `visit` for each, in a transaction of the caller's. The tables of pg_inbox may belong to
// somebody who need not be trusted and can have made anything of them: it runs nobody's code, and
// nothing that it finds there may end the process. Consumers that are refused are in the log once.
void visit_runnable_consumers(void (*visit)(const RunnableConsumer& consumer));

}  // namespace outbox
