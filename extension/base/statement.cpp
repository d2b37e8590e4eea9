#include "extension/base/statement.hpp"

namespace outbox {

static Statement* innermost = nullptr;  // in the frame of its hook
static const StatementWorker* worker = nullptr;
static ExecutorStart_hook_type previous_executor_start_hook = nullptr;
static ExecutorFinish_hook_type previous_executor_finish_hook = nullptr;

Statement* running_statement() {
    return innermost;
}

void leave_work(Statement& statement, void* work, const StatementWorker* its_worker) {
    statement.work = work;
    worker = its_worker;
}

void note_utility() {
    if (innermost != nullptr && worker != nullptr)
        worker->before_utility();
}

static void on_executor_start(QueryDesc* query, int flags) {
    if (innermost != nullptr && worker != nullptr)
        worker->before_query(query->plannedstmt);
    if (previous_executor_start_hook != nullptr)
        previous_executor_start_hook(query, flags);
    else
        standard_ExecutorStart(query, flags);
}

static void finish(QueryDesc* query) {
    if (previous_executor_finish_hook != nullptr)
        previous_executor_finish_hook(query);
    else
        standard_ExecutorFinish(query);
}

// After an error the (sub)transaction rolls back what the statement did, so its work is forgotten.
static void finish_with_work(QueryDesc* query, Statement& statement) {
    PG_TRY();
    {
        innermost = &statement;
        finish(query);
        if (statement.work != nullptr)
            worker->finish(statement);
    }
    PG_FINALLY();
    { innermost = statement.outer; }
    PG_END_TRY();
}

static void on_executor_finish(QueryDesc* query) {
    if (query->operation == CMD_SELECT && !query->plannedstmt->hasModifyingCTE) {
        finish(query);
        return;
    }
    Statement statement = {innermost, GetCurrentSubTransactionId(), CurrentResourceOwner,
                           query->estate->es_query_cxt, nullptr};
    finish_with_work(query, statement);
}

// For the case that other code ends a transaction in a way that was not thought of: data must not
// be committed without what belongs to it.
static void refuse_unfinished_work(XactEvent event, void*) {
    if (event != XACT_EVENT_PRE_COMMIT && event != XACT_EVENT_PRE_PREPARE)
        return;
    for (const Statement* statement = innermost; statement != nullptr; statement = statement->outer)
        if (statement->work != nullptr)
            elog(ERROR, "a transaction ends within a statement whose events are not written");
}

void install_statement_hooks() {
    previous_executor_start_hook = ExecutorStart_hook;
    ExecutorStart_hook = on_executor_start;
    previous_executor_finish_hook = ExecutorFinish_hook;
    ExecutorFinish_hook = on_executor_finish;
    RegisterXactCallback(refuse_unfinished_work, nullptr);
}

}  // namespace outbox
