#include "extension/destinations/expression_analysis.hpp"

#include "extension/base/expression_text.hpp"

namespace outbox {

const char* expression_name(const char* option) {
    return strcmp(option, filter_name) == 0    ? filter_name
           : strcmp(option, payload_name) == 0 ? payload_name
                                               : nullptr;
}

static Node* find_column(ParseState*, ColumnRef* reference, Node* found) {
    Node* name = static_cast<Node*>(linitial(reference->fields));
    if (found != nullptr || list_length(reference->fields) != 1 || !IsA(name, String))
        return nullptr;
    for (size_t i = 0; i < lengthof(expression_columns); i++)
        if (strcmp(strVal(name), expression_columns[i].name) == 0)
            return reinterpret_cast<Node*>(
                makeVar(1, static_cast<AttrNumber>(i + 1), expression_columns[i].type, -1,
                        get_typcollation(expression_columns[i].type), 0));
    return nullptr;
}

[[noreturn]] static void refuse(const char* what, const char* option, const char* instead = "") {
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("%s are not allowed in option \"%s\"", what, option),
                    errhint("It is an expression over the columns of one event.%s", instead)));
    pg_unreachable();
}

static void refuse_more_than_one_event(const ParseState* state, Node* expression,
                                       const char* option) {
    if (state->p_hasSubLinks)
        refuse("subqueries", option,
               " Put the query into a function that is STABLE and PARALLEL SAFE.");
    if (state->p_hasAggs)
        refuse("aggregate functions", option);
    if (state->p_hasWindowFuncs)
        refuse("window functions", option);
    if (expression_returns_set(expression))
        refuse("set-returning functions", option);
}

// Functions of an expression must only read, and must not depend on the session.
static bool is_unfit(Oid function, void* unfit) {
    if (func_volatile(function) != PROVOLATILE_VOLATILE &&
        func_parallel(function) == PROPARALLEL_SAFE)
        return false;
    *static_cast<Oid*>(unfit) = function;
    return true;
}

static bool has_unfit(Node* node, void* unfit) {
    if (node == nullptr)
        return false;
    return check_functions_in_node(node, is_unfit, unfit) ||
           compat::walk_expression(node, has_unfit, unfit);
}

static char hazard_of(Node* expression) {
    Query* query = makeNode(Query);
    query->commandType = CMD_SELECT;
    query->targetList =
        list_make1(makeTargetEntry(reinterpret_cast<Expr*>(expression), 1, nullptr, false));
    return max_parallel_hazard(query);
}

static void refuse_unfit_functions(Node* expression, const char* option) {
    Oid function = InvalidOid;
    const bool unfit = has_unfit(expression, &function);
    if (!unfit && !contain_volatile_functions(expression) &&
        hazard_of(expression) == PROPARALLEL_SAFE)
        return;
    ereport(ERROR,
            (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
             errmsg("functions in option \"%s\" must be STABLE or IMMUTABLE, and PARALLEL SAFE",
                    option),
             unfit ? errdetail("Function %s is not.", format_procedure(function)) : 0,
             errhint("It is evaluated for each event, by a process that only reads.")));
}

static bool may_not_execute(Oid function, void*) {
    if (!compat::may_execute(function, GetUserId()))
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("permission denied for function %s", get_func_name(function))));
    return false;
}

static bool check_rights(Node* node, void*) {
    if (node == nullptr)
        return false;
    check_functions_in_node(node, may_not_execute, nullptr);
    return compat::walk_expression(node, check_rights, nullptr);
}

static Node* coerce_payload(ParseState* state, Node* expression) {
    const Oid type = getBaseType(exprType(expression));
    if (type == UNKNOWNOID)
        return coerce_type(state, expression, UNKNOWNOID, TEXTOID, -1, COERCION_IMPLICIT,
                           COERCE_IMPLICIT_CAST, -1);
    if (type != JSONBOID && type != JSONOID && type != TEXTOID && type != VARCHAROID &&
        type != BYTEAOID)
        ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
                        errmsg("option \"%s\" must be of type jsonb, json, text or bytea, not %s",
                               payload_name, format_type_be(type))));
    return expression;
}

Node* analyze_expression(const char* text, const char* option) {
    const ExpressionText expression = {text, psprintf("option \"%s\"", option),
                                       psprintf("option \"%s\" of a destination", option)};
    const ExpressionErrors errors(expression);
    ParseState* state = make_parsestate(nullptr);
    state->p_sourcetext = psprintf("(%s\n)", text);
    state->p_post_columnref_hook = find_column;
    Node* node = transformExpr(state, parse_expression(expression), EXPR_KIND_OTHER);
    refuse_more_than_one_event(state, node, option);
    node = strcmp(option, filter_name) == 0
               ? coerce_to_boolean(state, node, psprintf("option \"%s\"", option))
               : coerce_payload(state, node);
    assign_expr_collations(state, node);
    refuse_unfit_functions(node, option);
    check_rights(node, nullptr);
    errors.end();
    return node;
}

}  // namespace outbox
