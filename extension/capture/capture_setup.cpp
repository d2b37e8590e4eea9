// The triggers of captured tables. outbox.capture() and the event triggers call these functions to
// create and drop them.
//
// Triggers are made as the owner of the table (owners_rights.hpp): for a trigger on a partitioned
// table PostgreSQL plans the expressions of its partition keys, and an event trigger may run as a
// superuser. CREATE TRIGGER as a statement would need USAGE on our schema, which owners of tables
// may lack.
//
// The text of a condition is analyzed once, by outbox.capture(), in a sandbox. Partitions and children
// get a copy of the result: they may belong to a role with more rights, for which no code of the
// condition may run.
#include "extension/base/expression_text.hpp"
#include "extension/base/owners_rights.hpp"
#include "extension/base/sandbox.hpp"
#include "extension/capture/capture_config.hpp"
#include "extension/citus/citus_table.hpp"

namespace outbox {

// ---------------------------------------------------------------------------------------------
// Conditions
// ---------------------------------------------------------------------------------------------

static ExpressionText expression_of(const char* condition) {
    return {condition, "condition", "condition of outbox.capture()"};
}

struct GivenCondition {
    Relation table;
    const char* text;
};

// The condition as an expression over the columns of the table, with varno 1.
static Node* analyze_condition(void* argument) {
    const auto* given = static_cast<const GivenCondition*>(argument);
    const ExpressionText text = expression_of(given->text);
    const ExpressionErrors errors(text);
    ParseState* state = make_parsestate(nullptr);
    ParseNamespaceItem* item =
        addRangeTableEntryForRelation(state, given->table, AccessShareLock, nullptr, false, true);
    addNSItemToQuery(state, item, false, true, true);
    Node* expression =
        transformWhereClause(state, parse_expression(text), EXPR_KIND_TRIGGER_WHEN, "condition");
    assign_expr_collations(state, expression);
    errors.end();
    return expression;
}

static Node* given_condition(Relation table, const char* text) {
    GivenCondition given = {table, text};
    return make_in_sandbox(weaker_of(GetUserId(), table->rd_rel->relowner), analyze_condition,
                           &given);
}

// The condition of the captured table, for columns of a partition or child.
static Node* copied_condition(Oid captured, Relation member) {
    Relation table = table_open(captured, AccessShareLock);
    const char* text = text_of_condition(table);
    Node* condition = nullptr;
    if (text != nullptr)
        condition = static_cast<Node*>(
            linitial(map_partition_varattnos(list_make1(stringToNode(text)), 1, member, table)));
    table_close(table, NoLock);
    return condition;
}

// ---------------------------------------------------------------------------------------------
// Triggers
// ---------------------------------------------------------------------------------------------

struct TriggerKind {
    const char* name;
    const char* function;
    int16 when;
    int16 event;
    const char* event_name;
    const char* row;  // the row in the condition; nullptr if there is none
};

static constexpr TriggerKind row_triggers[] = {
    {"00_outbox_capture_insert", "capture_row", TRIGGER_TYPE_AFTER, TRIGGER_TYPE_INSERT, "INSERT",
     "new"},
    {"00_outbox_capture_update", "capture_row", TRIGGER_TYPE_AFTER, TRIGGER_TYPE_UPDATE, "UPDATE",
     nullptr},
    {delete_trigger_name, "capture_row", TRIGGER_TYPE_AFTER, TRIGGER_TYPE_DELETE, "DELETE", "old"},
};

static constexpr TriggerKind refuse_truncate = {
    truncate_trigger_name, "capture_truncate", TRIGGER_TYPE_BEFORE,
    TRIGGER_TYPE_TRUNCATE, "TRUNCATE",         nullptr};
static constexpr TriggerKind announce_truncate = {
    truncate_trigger_name, "capture_truncate", TRIGGER_TYPE_AFTER,
    TRIGGER_TYPE_TRUNCATE, "TRUNCATE",         nullptr};

// Visits the triggers that capture the table. `visit` must not look up anything: a catalog look-up
// may rebuild the list of triggers.
template <class Visit>
static void visit_capturing(Relation table, Visit&& visit) {
    const Oid row = capture_function("capture_row");
    const Oid truncate = capture_function("capture_truncate");
    const TriggerDesc* triggers = table->trigdesc;
    for (int i = 0; triggers != nullptr && i < triggers->numtriggers; i++)
        if (triggers->triggers[i].tgfoid == row || triggers->triggers[i].tgfoid == truncate)
            visit(triggers->triggers[i]);
}

static bool has_trigger(Relation table, const TriggerKind& kind) {
    bool found = false;
    visit_capturing(
        table, [&](const Trigger& trigger) { found |= strcmp(trigger.tgname, kind.name) == 0; });
    return found;
}

static const char* name_of(Relation table) {
    return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(table)),
                                      RelationGetRelationName(table));
}

// Returns the condition about the row that the trigger fires for; nullptr if there is none.
static Node* condition_for(const TriggerKind& kind, Node* condition) {
    if (condition == nullptr || kind.row == nullptr)
        return nullptr;
    auto* about = static_cast<Node*>(copyObjectImpl(condition));
    if (kind.event == TRIGGER_TYPE_INSERT)
        ChangeVarNodes(about, PRS2_OLD_VARNO, PRS2_NEW_VARNO, 0);
    return about;
}

// CREATE TRIGGER notes what a condition needs only if it gets the text.
static void add_dependencies(const ObjectAddress& trigger, Relation table, Node* condition) {
    ParseState* state = make_parsestate(nullptr);
    static constexpr const char* rows[] = {"old", "new"};
    for (const char* row : rows)
        addRangeTableEntryForRelation(state, table, AccessShareLock, makeAlias(row, NIL), false,
                                      false);
    recordDependencyOnExpr(&trigger, condition, state->p_rtable, DEPENDENCY_NORMAL);
}

// A statement, which Citus sends to the shards and to the other nodes. There it runs with the
// privileges of the table's owner.
static void create_distributed_trigger(Relation table, const TriggerKind& kind, Node* condition,
                                       const char* argument) {
    const char* when =
        condition == nullptr || kind.row == nullptr
            ? ""
            : psprintf("WHEN (%s)",
                       deparse_expression(condition,
                                          deparse_context_for(kind.row, RelationGetRelid(table)),
                                          true, false));
    const char* statement = psprintf(
        "CREATE TRIGGER %s %s %s ON %s FOR EACH %s %s EXECUTE FUNCTION outbox.%s(%s)",
        quote_identifier(kind.name), kind.when == TRIGGER_TYPE_BEFORE ? "BEFORE" : "AFTER",
        kind.event_name, name_of(table), kind.event == TRIGGER_TYPE_TRUNCATE ? "STATEMENT" : "ROW",
        when, kind.function, quote_literal_cstr(argument));
    SPI_connect();
    const int code = SPI_execute(statement, false, 0);
    if (code < 0)
        elog(ERROR, "could not create a trigger: %s", SPI_result_code_string(code));
    SPI_finish();
}

static void create_trigger(Relation table, const TriggerKind& kind, Node* condition,
                           const CitusCapture& citus) {
    if (citus.type != CitusType::none)
        return create_distributed_trigger(table, kind, condition, citus.argument);
    const char* schema = get_namespace_name(RelationGetNamespace(table));
    auto* statement = makeNode(CreateTrigStmt);
    statement->trigname = pstrdup(kind.name);
    statement->relation =
        makeRangeVar(pstrdup(schema), pstrdup(RelationGetRelationName(table)), -1);
    statement->funcname =
        list_make2(makeString(pstrdup("outbox")), makeString(pstrdup(kind.function)));
    statement->row = kind.event != TRIGGER_TYPE_TRUNCATE;
    statement->timing = kind.when;
    statement->events = kind.event;
    if (citus.argument != nullptr)
        statement->args = list_make1(makeString(pstrdup(citus.argument)));
    Node* when = condition_for(kind, condition);
    const ObjectAddress trigger =
        CreateTrigger(statement, nullptr, RelationGetRelid(table), InvalidOid, InvalidOid,
                      InvalidOid, capture_function(kind.function), InvalidOid, when, false, false);
    if (when != nullptr)
        add_dependencies(trigger, table, when);
    CommandCounterIncrement();
}

// PostgreSQL itself creates row triggers on partitions of a table, but not on other children, and
// creates TRUNCATE triggers on neither. Existing triggers stay as they are.
static void create_missing(Relation table, Node* condition, const char* on_truncate,
                           const CitusCapture& citus) {
    for (const TriggerKind& kind : row_triggers)
        if (!has_trigger(table, kind))
            create_trigger(table, kind, condition, citus);
    if (table->rd_rel->relkind == RELKIND_FOREIGN_TABLE || has_trigger(table, refuse_truncate))
        return;  // foreign tables have no TRUNCATE triggers
    if (strcmp(on_truncate, "refuse") == 0)
        create_trigger(table, refuse_truncate, nullptr, citus);
    else if (strcmp(on_truncate, "announce") == 0)
        create_trigger(table, announce_truncate, nullptr, citus);
}

static void create_triggers(Relation table, Node* condition, const char* on_truncate) {
    const Oid owner = table->rd_rel->relowner;
    const CitusCapture citus = find_citus_capture(RelationGetRelid(table));
    if (citus.type != CitusType::none)
        check_may_capture(owner);
    const OwnersRights rights(owner);
    check_citus_type(citus.type, RelationGetRelationName(table));
    create_missing(table, condition, on_truncate, citus);
    rights.give_back();
    if (citus.captured_type != CitusType::none && citus.type == CitusType::none)
        allow_distributed_triggers();  // Citus is about to distribute a new partition
}

// Returns the names of the triggers that capture the table and that `concerns` accepts.
template <class Concerns>
static List* names_of_triggers(Relation table, Concerns&& concerns) {
    List* names = NIL;
    visit_capturing(table, [&](const Trigger& trigger) {
        if (concerns(trigger))
            names = lappend(names, pstrdup(trigger.tgname));
    });
    return names;
}

// Runs a statement for each trigger: its name between `before` and `after`.
static void run_for_each(const List* triggers, const char* before, const char* after) {
    if (triggers == NIL)
        return;
    SPI_connect();
    ListCell* cell;
    foreach (cell, triggers) {
        const char* name = quote_identifier(static_cast<const char*>(lfirst(cell)));
        const int code = SPI_execute(psprintf("%s%s%s", before, name, after), false, 0);
        if (code < 0)
            elog(ERROR, "could not alter a trigger: %s", SPI_result_code_string(code));
    }
    SPI_finish();
}

}  // namespace outbox

// Locks the table with its partitions and children, as LOCK TABLE does.
OUTBOX_FUNCTION(outbox_lock_captured) {
    outbox::check_owns_table(PG_GETARG_OID(0));
    LockRelationOid(PG_GETARG_OID(0), ShareRowExclusiveLock);
    find_all_inheritors(PG_GETARG_OID(0), ShareRowExclusiveLock, nullptr);
    PG_RETURN_VOID();
}

// (table regclass, condition text, on_truncate text)
OUTBOX_FUNCTION(outbox_add_capture_triggers) {
    using namespace outbox;
    if (PG_ARGISNULL(0) || PG_ARGISNULL(2))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("argument is null")));
    check_owns_table(PG_GETARG_OID(0));
    Relation table = table_open(PG_GETARG_OID(0), ShareRowExclusiveLock);
    Node* condition =
        PG_ARGISNULL(1) ? nullptr : given_condition(table, text_to_cstring(PG_GETARG_TEXT_PP(1)));
    create_triggers(table, condition, text_to_cstring(PG_GETARG_TEXT_PP(2)));
    table_close(table, NoLock);
    PG_RETURN_VOID();
}

// (captured regclass, member regclass, on_truncate text)
OUTBOX_FUNCTION(outbox_copy_capture_triggers) {
    using namespace outbox;
    check_owns_table(PG_GETARG_OID(0));
    check_owns_table(PG_GETARG_OID(1));
    Relation member = table_open(PG_GETARG_OID(1), ShareRowExclusiveLock);
    create_triggers(member, copied_condition(PG_GETARG_OID(0), member),
                    text_to_cstring(PG_GETARG_TEXT_PP(2)));
    table_close(member, NoLock);
    PG_RETURN_VOID();
}

// (member regclass)
OUTBOX_FUNCTION(outbox_drop_capture_triggers) {
    using namespace outbox;
    const OwnersRights rights(check_owns_table(PG_GETARG_OID(0)));
    Relation table = table_open(PG_GETARG_OID(0), AccessShareLock);
    // Dropping the triggers of the partitioned table drops those of its partitions.
    const List* names =
        names_of_triggers(table, [](const Trigger& trigger) { return !trigger.tgisclone; });
    const char* after = psprintf(" ON %s", name_of(table));
    table_close(table, NoLock);
    allow_distributed_triggers();
    run_for_each(names, "DROP TRIGGER ", after);
    rights.give_back();
    PG_RETURN_VOID();
}

// (member regclass, fire text)
OUTBOX_FUNCTION(outbox_set_capture_fire) {
    using namespace outbox;
    const Oid owner = check_owns_table(PG_GETARG_OID(0));
    const char* fire = text_to_cstring(PG_GETARG_TEXT_PP(1));
    check_citus_fire(find_citus_capture(PG_GETARG_OID(0)).type, fire,
                     get_rel_name(PG_GETARG_OID(0)));
    const OwnersRights rights(owner);
    const bool always = strcmp(fire, "always") == 0;
    const bool replica = strcmp(fire, "replica") == 0;
    const char state = always    ? TRIGGER_FIRES_ALWAYS
                       : replica ? TRIGGER_FIRES_ON_REPLICA
                                 : TRIGGER_FIRES_ON_ORIGIN;
    Relation table = table_open(PG_GETARG_OID(0), AccessShareLock);
    const List* names = names_of_triggers(
        table, [state](const Trigger& trigger) { return trigger.tgenabled != state; });
    const char* before = psprintf("ALTER TABLE %s ENABLE %sTRIGGER ", name_of(table),
                                  always    ? "ALWAYS "
                                  : replica ? "REPLICA "
                                            : "");
    table_close(table, NoLock);
    run_for_each(names, before, "");
    rights.give_back();
    PG_RETURN_VOID();
}
