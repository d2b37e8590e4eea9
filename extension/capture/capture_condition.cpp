// Conditions of captures. They are stored in the triggers, so PostgreSQL keeps them correct when
// columns are renamed.
//
// They are planned and evaluated as PostgreSQL does with the WHEN of a trigger: as the role that
// changes the row. Looking at a capture plans nothing, because that may be done for any role.
//
// They may call functions of the table's owner. Such a function may change the same table, which
// evaluates the condition again, or capture the table again, or raise an error. So each evaluation
// owns the state that it works with.
#include "extension/capture/capture_event.hpp"
#include "extension/citus/citus_table.hpp"

namespace outbox {

// A condition ready to be evaluated, in a memory context of its own.
struct CaptureCondition {
    MemoryContext memory;
    ExprState* state;
    ExprContext* context;  // the context of the row
};

const char* text_of_condition(Relation relation) {
    const Oid function = capture_function("capture_row");
    const TriggerDesc* triggers = relation->trigdesc;  // valid until the next catalog look-up
    for (int i = 0; triggers != nullptr && i < triggers->numtriggers; i++) {
        const Trigger& trigger = triggers->triggers[i];
        if (is_trigger_called(trigger.tgname, delete_trigger_name) &&
            trigger.tgtype == (TRIGGER_TYPE_ROW | TRIGGER_TYPE_AFTER | TRIGGER_TYPE_DELETE) &&
            trigger.tgfoid == function)
            return trigger.tgqual != nullptr ? pstrdup(trigger.tgqual) : nullptr;
    }
    return nullptr;
}

// The result lives as long as the subtransaction, unless it is kept.
static CaptureCondition* make_condition(const Capture& capture) {
    MemoryContext memory =
        AllocSetContextCreate(CurTransactionContext, "outbox condition", ALLOCSET_SMALL_SIZES);
    MemoryContext outer = MemoryContextSwitchTo(memory);
    auto* condition = static_cast<CaptureCondition*>(palloc(sizeof(CaptureCondition)));
    condition->memory = memory;
    // Planning runs IMMUTABLE functions.
    List* clauses = make_ands_implicit(expression_planner(capture.condition));
    condition->state = ExecInitQual(clauses, nullptr);
    condition->context = CreateStandaloneExprContext();
    MemoryContextSwitchTo(outer);
    return condition;
}

// Keeps one condition for the next evaluation.
static void keep_condition(const Capture& capture, CaptureCondition* condition) {
    if (capture.idle_condition == nullptr) {
        MemoryContextSetParent(condition->memory, capture.memory);
        capture.idle_condition = condition;
    } else {
        FreeExprContext(condition->context, true);
        MemoryContextDelete(condition->memory);
    }
}

// Takes the kept condition away, or makes another. After an error it is not given back: it is freed
// with the memory of the failed subtransaction, and the next evaluation makes another.
static CaptureCondition* take_condition(const Capture& capture) {
    CaptureCondition* condition = capture.idle_condition;
    if (condition == nullptr)
        return make_condition(capture);
    capture.idle_condition = nullptr;
    MemoryContextSetParent(condition->memory, CurTransactionContext);
    return condition;
}

void read_condition(Capture& capture, Relation relation) {
    const char* text = text_of_condition(relation);
    if (text == nullptr)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("the triggers that capture table \"%s\" are not complete",
                               RelationGetRelationName(relation)),
                        errhint("Call outbox.capture() again, with replace => true.")));
    capture.condition = static_cast<Expr*>(stringToNode(text));
}

bool is_captured(const Capture& capture, TupleTableSlot* row) {
    if (capture.condition == nullptr)
        return true;
    CaptureCondition* condition = take_condition(capture);
    condition->context->ecxt_scantuple = row;
    const bool result = ExecQual(condition->state, condition->context);
    ResetExprContext(condition->context);
    keep_condition(capture, condition);
    return result;
}

}  // namespace outbox
