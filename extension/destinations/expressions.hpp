// Expressions of destinations: the options filter and payload. They are SQL over the columns of an
// event. The payload is one of them, as jsonb; NULL if the event has none, or one that is not JSON.
//
// An expression is code of the owner of the foreign server. It runs with the rights of that role and
// no others, in a security-restricted operation, with names looked up in pg_catalog only. It may
// only read: it runs in parallel mode and read-only, in a subtransaction that is always rolled back.
// The functions that it calls for one event end after outbox.expression_timeout.
//
// An error of an expression is the fault of the event it was evaluated for, and has no effect on
// others: the subtransaction is rolled back, and the next event gets another. Evaluating events
// without an error costs one subtransaction, however many they are. An error before any event was
// looked at (a function is gone, or the owner may not call it) concerns all events: begin() returns
// it, and the destination is misconfigured.
//
// It costs a transaction that evaluates no expression nothing.
#pragma once

#include "extension/log/utf8.hpp"

namespace outbox {

struct ExpressionTexts {
    const char* filter = nullptr;   // nullptr if there is none
    const char* payload = nullptr;  // likewise

    bool any() const { return filter != nullptr || payload != nullptr; }
};

// Returns the expressions among the options of a foreign server.
ExpressionTexts expression_texts(List* options);

// Raises an error unless both are what they have to be, and the current user may call their
// functions. Does not call them.
void check_expressions(const ExpressionTexts& texts);

// The result of the expressions for one event.
struct EventChange {
    bool has_new_payload;
    bool new_payload_is_null;
    bool new_payload_is_json;  // otherwise the content type is kept
    Bytes new_payload;
    Bytes fault;  // why it cannot be sent; empty if it can
};

// Evaluates expressions within one transaction. From begin() until end(), the current user is the
// owner of the expressions. Errors jump over it: it has no destructor.
class Expressions {
  public:
    // The texts must outlive the object.
    Expressions(Oid owner, const ExpressionTexts& texts) : owner_(owner), texts_(texts) {}

    bool any() const { return texts_.any(); }

    // Returns why they cannot be evaluated, in UTF-8; nullptr if they can. Then end() must be called.
    char* begin();
    // Evaluates the expressions for a row that begins with the columns of the log. Returns false if
    // the filter does not select it. `change` is valid until the next call.
    bool evaluate(TupleTableSlot* row, EventChange& change);
    void end();

    // True if this transaction has evaluated for so long that it should end.
    bool took_long() const;

  private:
    void prepare();
    void open_subtransaction();
    void roll_back();
    bool select_and_change(TupleTableSlot* row, EventChange& change);
    void load(TupleTableSlot* row);
    void note_fault(const ErrorData& error, EventChange& change) const;

    Oid owner_;
    ExpressionTexts texts_;
    TimestampTz began_at_ = 0;
    bool open_ = false;                      // there is a subtransaction
    ResourceOwner resources_ = nullptr;      // of the caller
    ResourceOwner own_resources_ = nullptr;  // of the subtransaction
    // These live as long as the subtransaction.
    TupleTableSlot* event_ = nullptr;
    ExprContext* context_ = nullptr;
    ExprState* filter_ = nullptr;
    ExprState* payload_ = nullptr;
    Oid payload_type_ = InvalidOid;
    bool reads_payload_ = false;
    const char* evaluated_ = nullptr;  // name of the option
};

}  // namespace outbox
