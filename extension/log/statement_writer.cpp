#include "extension/log/statement_writer.hpp"

#include "extension/base/statement.hpp"

namespace outbox {

static constexpr int rows_of_statement_at_once = 64;

static LogWriter& writer_of(const Statement& statement) {
    return *static_cast<LogWriter*>(statement.work);
}

// A trigger may run code in a subtransaction of its own. Rows written there would be lost when it
// rolls back.
static bool is_in_its_subtransaction(const Statement& statement) {
    return statement.subtransaction == GetCurrentSubTransactionId();
}

// While rows are written, functions of indexes that somebody has added may run.
static bool is_writing(const Statement& statement) {
    return statement.work != nullptr && writer_of(statement).is_writing;
}

static bool may_write(const Statement& statement) {
    return is_in_its_subtransaction(statement) && !is_writing(statement);
}

// Works with the memory and the resources of the statement: this may be called from a query within
// a trigger, which ends earlier.
template <class Function>
static void work(Statement& statement, Function&& function) {
    ResourceOwner owner = CurrentResourceOwner;
    MemoryContext memory = MemoryContextSwitchTo(statement.memory);
    CurrentResourceOwner = statement.owner;
    function(statement);
    CurrentResourceOwner = owner;
    MemoryContextSwitchTo(memory);
}

static void write(Statement& statement) {
    write_rows(writer_of(statement));
}

static void close(Statement& statement) {
    LogWriter* writer = &writer_of(statement);
    close_log(*writer);
    statement.work = nullptr;
    pfree(writer);
}

// Does it for all statements that are running and have collected events.
template <class Function>
static void work_for_all(Function&& function) {
    for (Statement* statement = running_statement(); statement != nullptr;
         statement = statement->outer)
        if (statement->work != nullptr && may_write(*statement))
            work(*statement, function);
}

// The planner lists a table together with its children.
static bool reads_log(const PlannedStmt* plan) {
    ListCell* cell;
    foreach (cell, plan->relationOids)
        if (segment_name(lfirst_oid(cell)) != nullptr)
            return true;
    return false;
}

static void before_query(const PlannedStmt* plan) {
    if (reads_log(plan))
        work_for_all(write);
}

// It may alter the log, which must not be open then.
static void before_utility() {
    work_for_all(close);
}

static void finish(Statement& statement) {
    work(statement, close);
}

static constexpr StatementWorker log_worker = {finish, before_query, before_utility};

static void open(Statement& statement) {
    auto* writer = static_cast<LogWriter*>(palloc(sizeof(LogWriter)));
    *writer = open_log(rows_of_statement_at_once);
    leave_work(statement, writer, &log_worker);
}

// The log goes on to another segment during a long statement, too.
static void open_current_segment(Statement& statement) {
    if (statement.work != nullptr && !is_current(writer_of(statement)))
        work(statement, close);
    if (statement.work == nullptr)
        work(statement, open);
}

// Rows that are written together belong to one command, by which cursors tell what they may see.
static void begin_command(Statement& statement) {
    const CommandId command = GetCurrentCommandId(true);
    if (writer_of(statement).command == command)
        return;
    work(statement, write);
    writer_of(statement).command = command;
}

// Not so for COPY in a cursor that a trigger opens: what the cursor refers to is gone before the
// statement ends.
static bool may_collect(const Statement& statement) {
    return statement.owner == CurrentResourceOwner && may_write(statement);
}

LogWriter* writer_of_statement() {
    Statement* statement = running_statement();
    if (statement == nullptr || !may_collect(*statement))
        return nullptr;
    open_current_segment(*statement);
    begin_command(*statement);
    return &writer_of(*statement);
}

}  // namespace outbox
