// Parses expressions that users give as text: conditions of captures, expressions of destinations.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// An expression, and what it is called in errors.
struct ExpressionText {
    const char* text;
    const char* name;   // "condition"
    const char* place;  // "condition of outbox.capture()"
};

// Returns the raw parse tree. Raises an error unless the text is one expression.
Node* parse_expression(const ExpressionText& expression);

// Adds the place to errors from construction until end(), and moves their position from the
// statement into the expression. There is no destructor, because errors jump over it.
class ExpressionErrors {
  public:
    explicit ExpressionErrors(const ExpressionText& expression);
    void end() const { error_context_stack = context_.previous; }

  private:
    ErrorContextCallback context_;
};

}  // namespace outbox
