// Statements whose row triggers are running, and work that triggers leave until these have run.
//
// Row triggers run when their statement finishes, within ExecutorFinish(). A hook there does the
// work that is left. Nothing else ends all statements that run row triggers: triggers of statements
// do not run for subscriptions and for actions of foreign keys.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

struct Statement {
    Statement* outer;
    SubTransactionId subtransaction;
    ResourceOwner owner;
    MemoryContext memory;
    void* work;  // nullptr if there is none left
};

// The code that leaves work.
struct StatementWorker {
    void (*finish)(Statement& statement);           // called if there is work left
    void (*before_query)(const PlannedStmt* plan);  // called within a statement
    void (*before_utility)();
};

// Returns the statement whose row triggers are running. Returns nullptr where no end would be seen,
// as for COPY and subscriptions, or when the library is not preloaded.
Statement* running_statement();

void leave_work(Statement& statement, void* work, const StatementWorker* worker);

// Called before each utility statement.
void note_utility();

// Called from _PG_init when the library is preloaded.
void install_statement_hooks();

}  // namespace outbox
