// Expressions of destinations: the options filter and payload. They are SQL over the columns of an
// event. The payload is one of them, as jsonb; NULL if the event has none, or one that is not JSON.
//
// An expression is code of others: it runs in a sandbox (extension/base/sandbox.hpp), as the role that
// expression_role.hpp says. The functions that it calls for one event end after
// outbox.expression_timeout.
//
// An error of an expression is the fault of the event it was evaluated for, and has no effect on
// others: the subtransaction is rolled back, and the next event gets another. Evaluating events
// without an error costs one subtransaction, however many they are. An error before any event was
// looked at (a function is gone, or its role may not call it) concerns all events: begin() returns
// it, and the destination is misconfigured.
//
// It costs a transaction that evaluates no expression nothing.
#pragma once

#include "core/clock.hpp"
#include "extension/base/sandbox.hpp"
#include "extension/log/utf8.hpp"

namespace outbox {

struct ExpressionTexts {
    const char* filter = nullptr;   // nullptr if there is none
    const char* payload = nullptr;  // likewise

    bool any() const { return filter != nullptr || payload != nullptr; }
};

// Returns the expressions among the options of a foreign server.
ExpressionTexts expression_texts(List* options);

// The result of the expressions for one event.
struct EventChange {
    bool has_new_payload;
    bool new_payload_is_null;
    bool new_payload_is_json;  // otherwise the content type is kept
    Bytes new_payload;
    Bytes fault;  // why it cannot be sent; empty if it can
};

// Evaluates expressions within one transaction. From begin() until end(), the current user is the
// role of the expressions. Errors jump over it: it has no destructor.
class Expressions {
  public:
    // `owner` owns the foreign server. The texts must outlive the object.
    Expressions(const char* destination, Oid owner, const ExpressionTexts& texts)
        : destination_(destination), owner_(owner), texts_(texts) {}

    bool any() const { return texts_.any(); }

    // Returns why they cannot be evaluated, in UTF-8; nullptr if they can. Then end() must be called.
    const char* begin();
    // Evaluates the expressions for a row that begins with the columns of the log. Returns false if
    // the filter does not select it. `change` is valid until the next call.
    bool evaluate(TupleTableSlot* row, EventChange& change);
    void end();

    // True if this transaction has evaluated for so long that it should end.
    bool took_long() const;

  private:
    void prepare();
    void open();
    bool select_and_change(TupleTableSlot* row, EventChange& change);
    void load(TupleTableSlot* row);
    void note_fault(const ErrorData& error, EventChange& change) const;

    const char* destination_;
    Oid owner_;
    ExpressionTexts texts_;
    Oid role_ = InvalidOid;
    Micros began_at_ = 0;  // by steady_now()
    Sandbox sandbox_;
    // These live as long as the sandbox is open.
    TupleTableSlot* event_ = nullptr;
    ExprContext* context_ = nullptr;
    ExprState* filter_ = nullptr;
    ExprState* payload_ = nullptr;
    Oid payload_type_ = InvalidOid;
    bool reads_payload_ = false;
    const char* evaluated_ = nullptr;  // name of the option
};

}  // namespace outbox
