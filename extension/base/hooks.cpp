#include "extension/base/hooks.hpp"

#include <string_view>
#include <utility>

#include "extension/base/drop_guard.hpp"
#include "extension/base/pg.hpp"
#include "extension/base/shared_state.hpp"
#include "extension/base/statement.hpp"
#include "extension/base/wakeup.hpp"

namespace outbox {

static object_access_hook_type previous_object_access_hook = nullptr;
static ProcessUtility_hook_type previous_process_utility_hook = nullptr;

// Wakes workers when an extension, a destination or its credentials are created, changed or
// dropped.
static void on_object_access(ObjectAccessType access, Oid catalog, Oid object, int sub_object,
                             void* argument) {
    if (previous_object_access_hook)
        previous_object_access_hook(access, catalog, object, sub_object, argument);

    if (access != OAT_POST_CREATE && access != OAT_POST_ALTER && access != OAT_DROP)
        return;
    switch (catalog) {
        case ExtensionRelationId:
        case ForeignServerRelationId:
        case UserMappingRelationId:
        case SubscriptionRelationId:  // it may make this database a copy
            wake_at_commit(WakeKeeper);
            break;
        case DatabaseRelationId:
            if (access == OAT_POST_CREATE)  // its template may have had the extension
                tell_of_database_at_commit(object);
            break;
        default:
            break;
    }
}

// Returns the database to which nobody may be connected while the statement runs; InvalidOid if
// none.
static Oid database_in_the_way(const Node* statement) {
    const char* name = nullptr;
    switch (nodeTag(statement)) {
        case T_DropdbStmt:
            name = reinterpret_cast<const DropdbStmt*>(statement)->dbname;
            break;
        case T_RenameStmt: {
            const auto* rename = reinterpret_cast<const RenameStmt*>(statement);
            if (rename->renameType == OBJECT_DATABASE)
                name = rename->subname;
            break;
        }
        case T_AlterDatabaseStmt: {
            const auto* alter = reinterpret_cast<const AlterDatabaseStmt*>(statement);
            ListCell* cell;
            foreach (cell, alter->options)
                if (strcmp(lfirst_node(DefElem, cell)->defname, "tablespace") == 0)
                    name = alter->dbname;
            break;
        }
        case T_CreatedbStmt: {
            const auto* create = reinterpret_cast<const CreatedbStmt*>(statement);
            ListCell* cell;
            foreach (cell, create->options) {
                DefElem* option = lfirst_node(DefElem, cell);
                if (strcmp(option->defname, "template") == 0 && option->arg != nullptr)
                    name = defGetString(option);
            }
            break;
        }
        default:
            break;
    }
    return name != nullptr ? get_database_oid(name, true) : InvalidOid;
}

static bool may_create_databases() {
    if (superuser())
        return true;
    HeapTuple role = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
    if (!HeapTupleIsValid(role))
        return false;
    const bool may = reinterpret_cast<Form_pg_authid>(GETSTRUCT(role))->rolcreatedb;
    ReleaseSysCache(role);
    return may;
}

static bool is_template(Oid database) {
    HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
    if (!HeapTupleIsValid(tuple))
        return false;
    const bool is = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple))->datistemplate;
    ReleaseSysCache(tuple);
    return is;
}

// Checks the privileges that the server will ask for. A role that the server will refuse must not
// disturb the workers.
static bool may_disturb(Oid database, const Node* statement) {
    const bool owns = compat::owns_database(database, GetUserId());
    if (IsA(statement, CreatedbStmt))
        return may_create_databases() && (owns || is_template(database));
    if (IsA(statement, RenameStmt))
        return owns && may_create_databases();
    return owns;
}

// Inside a transaction block the server refuses all of these statements except a rename.
static bool is_refused_in_block(const Node* statement) {
    return !IsA(statement, RenameStmt);
}

// Returns whether the statement is DROP DATABASE ... WITH (FORCE).
static bool ends_sessions(const Node* statement) {
    if (!IsA(statement, DropdbStmt))
        return false;
    ListCell* cell;
    foreach (cell, reinterpret_cast<const DropdbStmt*>(statement)->options)
        if (strcmp(lfirst_node(DefElem, cell)->defname, "force") == 0)
            return true;
    return false;
}

// Returns how many workers are still there. A check is asked to leave only when sessions have to
// leave, because it ends with its session. The server would end its worker too, but not for an
// owner that is not a superuser, because the worker runs as one.
static int ask_to_leave(Oid database, const Node* statement) {
    int count = terminate_workers(database, WorkerKind::none);
    if (ends_sessions(statement))
        count += terminate_checks(database);
    return count;
}

// Workers are connected, so DROP DATABASE would fail. They leave now, and none starts before
// release_hold().
static void clear_database(Oid database, const Node* statement) {
    hold_database(database);
    for (int tries = 0; ask_to_leave(database, statement) > 0 && tries < 500; tries++) {
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    }
}

// The arguments of the hook.
struct Utility {
    PlannedStmt* statement;
    const char* query;
    bool read_only_tree;
    ProcessUtilityContext context;
    ParamListInfo parameters;
    QueryEnvironment* environment;
    DestReceiver* receiver;
    QueryCompletion* completion;
};

static void execute(const Utility& utility) {
    const ProcessUtility_hook_type next =
        previous_process_utility_hook ? previous_process_utility_hook : standard_ProcessUtility;
    next(utility.statement, utility.query, utility.read_only_tree, utility.context,
         utility.parameters, utility.environment, utility.receiver, utility.completion);
}

// Decides when the hold ends. It ends at once when the statement fails, and after a statement in a
// block, because the role could leave the block open. Otherwise it ends with the transaction: a
// worker that started before the commit would find the database dropped.
static void execute_without_workers(const Utility& utility, Oid database, bool in_block) {
    PG_TRY();
    {
        clear_database(database, utility.statement->utilityStmt);
        execute(utility);
    }
    PG_CATCH();
    {
        release_hold();
        PG_RE_THROW();
    }
    PG_END_TRY();
    if (in_block)
        release_hold();
}

// COMMIT or ROLLBACK PREPARED may fail, for example for another role's transaction; only its
// success is noted.
static void execute_two_phase(const Utility& utility, const TransactionStmt* statement) {
    if (statement->kind == TRANS_STMT_PREPARE)
        note_prepare(statement->gid);
    execute(utility);
    if (statement->kind == TRANS_STMT_COMMIT_PREPARED)
        note_prepared_end(statement->gid, true);
    else if (statement->kind == TRANS_STMT_ROLLBACK_PREPARED)
        note_prepared_end(statement->gid, false);
}

static bool prepared_by_others = false;

static void note_prepared(const PrepareStmt* statement) {
    if (!std::string_view(statement->name).starts_with("inbox_"))
        prepared_by_others = true;
}

bool take_prepared_by_others() {
    return std::exchange(prepared_by_others, false);
}

static void on_utility(PlannedStmt* statement, const char* query, bool read_only_tree,
                       ProcessUtilityContext context, ParamListInfo parameters,
                       QueryEnvironment* environment, DestReceiver* receiver,
                       QueryCompletion* completion) {
    const Utility utility = {statement,  query,       read_only_tree, context,
                             parameters, environment, receiver,       completion};
    const Node* parsed = statement->utilityStmt;
    note_utility();
    if (IsA(parsed, TransactionStmt)) {
        execute_two_phase(utility, reinterpret_cast<const TransactionStmt*>(parsed));
        return;
    }
    if (IsA(parsed, PrepareStmt))
        note_prepared(reinterpret_cast<const PrepareStmt*>(parsed));
    const Oid database = database_in_the_way(parsed);
    // The server will refuse this for the current database.
    if (!OidIsValid(database) || database == MyDatabaseId || !may_disturb(database, parsed)) {
        const Undelivered lost = check_drop(parsed);
        execute(utility);
        warn_of_drop(lost);
        return;
    }
    const bool in_block = IsInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL);
    if (in_block && is_refused_in_block(parsed))
        execute(utility);
    else
        execute_without_workers(utility, database, in_block);
}

void install_hooks() {
    previous_object_access_hook = object_access_hook;
    object_access_hook = on_object_access;
    previous_process_utility_hook = ProcessUtility_hook;
    ProcessUtility_hook = on_utility;
}

}  // namespace outbox
