#include "extension/base/expression_text.hpp"

namespace outbox {

Node* parse_expression(const ExpressionText& expression) {
    List* statements = raw_parser(psprintf("(%s\n)", expression.text), RAW_PARSE_PLPGSQL_EXPR);
    auto* select = reinterpret_cast<SelectStmt*>(linitial_node(RawStmt, statements)->stmt);
    if (list_length(select->targetList) != 1 || select->fromClause != NIL ||
        select->whereClause != nullptr || select->groupClause != NIL ||
        select->havingClause != nullptr || select->sortClause != NIL ||
        select->limitCount != nullptr || select->limitOffset != nullptr)
        ereport(ERROR, (errcode(ERRCODE_SYNTAX_ERROR),
                        errmsg("%s is not a single expression", expression.name)));
    return static_cast<ResTarget*>(linitial(select->targetList))->val;
}

static void place_in_expression(void* argument) {
    const auto* expression = static_cast<const ExpressionText*>(argument);
    if (const int position = geterrposition(); position > 0) {
        errposition(0);
        internalerrposition(position);
        internalerrquery(psprintf("(%s\n)", expression->text));
    }
    errcontext("%s", expression->place);
}

ExpressionErrors::ExpressionErrors(const ExpressionText& expression)
    : context_{error_context_stack, place_in_expression, const_cast<ExpressionText*>(&expression)} {
    error_context_stack = &context_;
}

}  // namespace outbox
