// What outbox.capture() (sql/pg_outbox/capture.sql) cannot do in SQL: to write outbox.captured on
// behalf of the owner of a table, and to read a condition.
#include "caller.hpp"
#include "capture.hpp"
#include "owners_rights.hpp"

namespace outbox {

static void check_owns_table(Oid table) {
    const Oid owner = owner_of(table);
    if (!OidIsValid(owner))
        ereport(ERROR,
                (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("table %u does not exist", table)));
    if (!has_privs_of_role(GetUserId(), owner))
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("must be owner of table %s", get_rel_name(table))));
}

static void execute(const char* statement, Oid type, Datum argument) {
    SPI_connect();
    if (SPI_execute_with_args(statement, 1, &type, &argument, nullptr, false, 0) < 0)
        elog(ERROR, "cannot write outbox.captured");
    SPI_finish();
}

// Runs a statement as the owner of outbox.captured, as referential integrity does.
static void run_as_owner(const char* statement, Oid type, Datum argument) {
    const Oid captured = get_relname_relid("captured", get_namespace_oid("outbox", false));
    Oid user;
    int context;
    GetUserIdAndSecContext(&user, &context);
    SetUserIdAndSecContext(owner_of(captured), context | SECURITY_LOCAL_USERID_CHANGE);
    execute(statement, type, argument);
    SetUserIdAndSecContext(user, context);
}

// The position of an error is one in the condition, not in the statement that captures the table.
static void place_in_condition(void* condition) {
    if (const int position = geterrposition(); position > 0) {
        errposition(0);
        internalerrposition(position);
        internalerrquery(static_cast<const char*>(condition));
    }
    errcontext("condition of outbox.capture()");
}

// The condition as an expression over the columns of the table.
static Node* parse_condition(Oid table, const char* condition, ParseState* state) {
    char* expression_text = psprintf("(%s\n)", condition);
    ErrorContextCallback context = {error_context_stack, place_in_condition, expression_text};
    error_context_stack = &context;
    List* statements = raw_parser(expression_text, RAW_PARSE_PLPGSQL_EXPR);
    auto* select = reinterpret_cast<SelectStmt*>(linitial_node(RawStmt, statements)->stmt);
    if (list_length(select->targetList) != 1 || select->fromClause != NIL ||
        select->whereClause != nullptr)
        ereport(ERROR, (errcode(ERRCODE_SYNTAX_ERROR), errmsg("condition is not one expression")));
    auto* target = static_cast<ResTarget*>(linitial(select->targetList));
    Relation relation = table_open(table, AccessShareLock);
    ParseNamespaceItem* item =
        addRangeTableEntryForRelation(state, relation, AccessShareLock, nullptr, false, true);
    addNSItemToQuery(state, item, false, true, true);
    Node* expression =
        transformWhereClause(state, target->val, EXPR_KIND_TRIGGER_WHEN, "condition");
    assign_expr_collations(state, expression);
    table_close(relation, NoLock);
    error_context_stack = context.previous;
    return expression;
}

}  // namespace outbox

// outbox.capture() is not the only one who may call it: what it says is checked again, and who
// calls it is not for it to say.
OUTBOX_FUNCTION(outbox_save_captured) {
    using namespace outbox;
    refuse_restricted();
    HeapTupleHeader row = PG_GETARG_HEAPTUPLEHEADER(0);
    bool is_null;
    const Datum table = GetAttributeByNum(row, 1, &is_null);
    check_owns_table(is_null ? InvalidOid : DatumGetObjectId(table));
    execute("SELECT outbox.check_capturable($1)", REGCLASSOID, table);
    run_as_owner("DELETE FROM outbox.captured WHERE relation = $1", REGCLASSOID, table);
    run_as_owner("INSERT INTO outbox.captured SELECT ($1).*", HeapTupleHeaderGetTypeId(row),
                 PG_GETARG_DATUM(0));
    const char* sign = psprintf("UPDATE outbox.captured SET captured_by = %s, "
                                "captured_at = clock_timestamp() WHERE relation = $1",
                                quote_literal_cstr(GetUserNameFromId(GetUserId(), false)));
    run_as_owner(sign, REGCLASSOID, table);
    PG_RETURN_VOID();
}

OUTBOX_FUNCTION(outbox_forget_captured) {
    using namespace outbox;
    refuse_restricted();
    check_owns_table(PG_GETARG_OID(0));
    run_as_owner("DELETE FROM outbox.captured WHERE relation = $1", REGCLASSOID,
                 PG_GETARG_DATUM(0));
    PG_RETURN_VOID();
}

// Raises an error if what outbox.captured says does not fit the table.
OUTBOX_FUNCTION(outbox_check_captured) {
    using namespace outbox;
    Relation table = table_open(PG_GETARG_OID(0), AccessShareLock);
    find_capture(table);
    table_close(table, NoLock);
    PG_RETURN_VOID();
}

// The condition with its columns qualified, as CREATE TRIGGER wants it.
OUTBOX_FUNCTION(outbox_qualify_condition) {
    using namespace outbox;
    const Oid table = PG_GETARG_OID(0);
    ParseState* state = make_parsestate(nullptr);
    Node* expression = parse_condition(table, text_to_cstring(PG_GETARG_TEXT_PP(1)), state);
    const char* row = text_to_cstring(PG_GETARG_TEXT_PP(2));
    PG_RETURN_TEXT_P(cstring_to_text(
        deparse_expression(expression, deparse_context_for(row, table), true, false)));
}
