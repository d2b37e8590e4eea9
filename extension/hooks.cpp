#include "hooks.hpp"

#include "pg.hpp"
#include "shared_state.hpp"
#include "wakeup.hpp"

namespace outbox {

static object_access_hook_type previous_object_access_hook = nullptr;
static ProcessUtility_hook_type previous_process_utility_hook = nullptr;

// Extensions, destinations and their credentials that come, change or go.
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

// The database that nobody may be connected to while the statement runs; invalid: none.
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

static bool may_disturb(Oid database, const Node* statement) {
    // Copying a database is allowed to more roles than dropping it; the server checks that itself.
    if (IsA(statement, CreatedbStmt))
        return may_create_databases();
    return compat::owns_database(database, GetUserId());
}

// Workers are connected, and would make DROP DATABASE fail. They leave, and stay away until the
// statement has ended (release_hold() at the end of its transaction).
static void clear_database(Oid database) {
    if (database == MyDatabaseId)  // the server will refuse
        return;
    hold_database(database);
    for (int tries = 0; terminate_workers(database, WorkerKind::none) > 0 && tries < 500; tries++) {
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    }
}

static void on_utility(PlannedStmt* statement, const char* query, bool read_only_tree,
                       ProcessUtilityContext context, ParamListInfo parameters,
                       QueryEnvironment* environment, DestReceiver* receiver,
                       QueryCompletion* completion) {
    const Node* parsed = statement->utilityStmt;
    const Oid database = database_in_the_way(parsed);
    if (OidIsValid(database) && may_disturb(database, parsed))
        clear_database(database);
    else if (IsA(parsed, TransactionStmt) &&
             reinterpret_cast<const TransactionStmt*>(parsed)->kind == TRANS_STMT_COMMIT_PREPARED)
        wake_at_commit(WakeRelays | WakeProcessors);  // it may have prepared events

    if (previous_process_utility_hook)
        previous_process_utility_hook(statement, query, read_only_tree, context, parameters,
                                      environment, receiver, completion);
    else
        standard_ProcessUtility(statement, query, read_only_tree, context, parameters, environment,
                                receiver, completion);
}

void install_hooks() {
    previous_object_access_hook = object_access_hook;
    object_access_hook = on_object_access;
    previous_process_utility_hook = ProcessUtility_hook;
    ProcessUtility_hook = on_utility;
}

}  // namespace outbox
