#include "extension/destinations/expressions.hpp"

#include "core/content_type.hpp"
#include "extension/base/steady_time.hpp"
#include "extension/destinations/expression_analysis.hpp"
#include "extension/destinations/expression_role.hpp"

namespace outbox {

// A transaction that evaluates expressions ends after about this time, so that it does not keep a
// snapshot for long.
static constexpr Micros time_at_once = milliseconds(250);
static constexpr int max_fault = 1000;

ExpressionTexts expression_texts(List* options) {
    ExpressionTexts texts;
    ListCell* cell;
    foreach (cell, options) {
        DefElem* option = lfirst_node(DefElem, cell);
        if (strcmp(option->defname, filter_name) == 0)
            texts.filter = defGetString(option);
        else if (strcmp(option->defname, payload_name) == 0)
            texts.payload = defGetString(option);
    }
    return texts;
}

// -------------------------------------------------------------------------------------------------
// Subtransactions
// -------------------------------------------------------------------------------------------------

static const char* in_utf8(const char* text) {
    const Bytes utf8 = readable_utf8(text);
    return pnstrdup(utf8.data, utf8.size);
}

static const char* message_of(const ErrorData& error) {
    return Sandbox::timed_out() ? timeout_message() : error.message;
}

static const char* text_of_error(const ErrorData& error) {
    const char* message = message_of(error);
    return in_utf8(error.detail != nullptr ? psprintf("%s (%s)", message, error.detail) : message);
}

void Expressions::open() {
    sandbox_.open(role_);
    MemoryContext outer = MemoryContextSwitchTo(CurTransactionContext);
    sandbox_.enter();
    prepare();
    sandbox_.leave();
    MemoryContextSwitchTo(outer);
}

// Any error concerns all events: there is none yet.
const char* Expressions::begin() {
    MemoryContext outer = CurrentMemoryContext;
    const char* volatile trouble = nullptr;
    began_at_ = steady_now();
    if (!texts_.any())
        return nullptr;
    if (const char* wait = find_role(destination_, owner_, texts_, role_))
        return in_utf8(wait);
    PG_TRY();
    { open(); }
    PG_CATCH();
    {
        MemoryContextSwitchTo(outer);
        const ErrorData* error = CopyErrorData();
        FlushErrorState();
        trouble = text_of_error(*error);
        sandbox_.close();
    }
    PG_END_TRY();
    return trouble;
}

void Expressions::end() {
    sandbox_.close();
}

bool Expressions::took_long() const {
    return steady_now() - began_at_ >= time_at_once;
}

// -------------------------------------------------------------------------------------------------
// Evaluation
// -------------------------------------------------------------------------------------------------

static TupleDesc form_of_events() {
    TupleDesc form = CreateTemplateTupleDesc(lengthof(expression_columns));
    for (size_t i = 0; i < lengthof(expression_columns); i++)
        TupleDescInitEntry(form, static_cast<AttrNumber>(i + 1), expression_columns[i].name,
                           expression_columns[i].type, -1, 0);
    return form;
}

static bool reads_payload(Node* node, void*) {
    if (node == nullptr)
        return false;
    if (IsA(node, Var))
        return reinterpret_cast<Var*>(node)->varattno == payload_column;
    return compat::walk_expression(node, reads_payload, nullptr);
}

void Expressions::prepare() {
    filter_ = payload_ = nullptr;
    reads_payload_ = false;
    if (texts_.filter != nullptr) {
        Node* node = analyze_expression(texts_.filter, filter_name);
        reads_payload_ |= reads_payload(node, nullptr);
        filter_ = ExecInitExpr(expression_planner(reinterpret_cast<Expr*>(node)), nullptr);
    }
    if (texts_.payload != nullptr) {
        Node* node = analyze_expression(texts_.payload, payload_name);
        reads_payload_ |= reads_payload(node, nullptr);
        payload_type_ = getBaseType(exprType(node));
        payload_ = ExecInitExpr(expression_planner(reinterpret_cast<Expr*>(node)), nullptr);
    }
    event_ = MakeSingleTupleTableSlot(form_of_events(), &TTSOpsVirtual);
    context_ = CreateStandaloneExprContext();
    context_->ecxt_scantuple = event_;
}

static bool promises_json(Datum content_type) {
    const Bytes text = utf8_of(content_type);
    const auto type = ContentType::parse({text.data, text.size});
    return type && type->is_json();
}

static Datum json_of(Datum payload) {
    const bytea* bytes = DatumGetByteaPP(payload);
    const char* utf8 = VARDATA_ANY(bytes);
    const int length = static_cast<int>(VARSIZE_ANY_EXHDR(bytes));
    const char* converted = pg_any_to_server(utf8, length, PG_UTF8);
    const char* text = converted == utf8 ? pnstrdup(utf8, length) : converted;
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
}

void Expressions::load(TupleTableSlot* row) {
    slot_getallattrs(row);
    ExecClearTuple(event_);
    for (size_t i = 0; i < lengthof(expression_columns); i++) {
        event_->tts_values[i] = row->tts_values[expression_columns[i].from];
        event_->tts_isnull[i] = row->tts_isnull[expression_columns[i].from];
    }
    const int at = payload_column - 1;
    event_->tts_isnull[at] = !reads_payload_ || row->tts_isnull[LogPayload] ||
                             row->tts_isnull[LogContentType] ||
                             !promises_json(row->tts_values[LogContentType]);
    if (!event_->tts_isnull[at])
        event_->tts_values[at] = json_of(row->tts_values[LogPayload]);
    ExecStoreVirtualTuple(event_);
}

static Bytes bytes_of_payload(Datum value, Oid type) {
    if (type == JSONBOID) {
        Jsonb* json = DatumGetJsonbP(value);
        return utf8_of(CStringGetTextDatum(
            JsonbToCString(nullptr, &json->root, static_cast<int>(VARSIZE(json)))));
    }
    return type == BYTEAOID ? bytes_of(value) : utf8_of(value);
}

// In the memory of one event.
bool Expressions::select_and_change(TupleTableSlot* row, EventChange& change) {
    bool is_null;
    evaluated_ = filter_ != nullptr ? filter_name : payload_name;
    load(row);
    if (filter_ != nullptr && (!DatumGetBool(ExecEvalExpr(filter_, context_, &is_null)) || is_null))
        return false;
    if (payload_ == nullptr)
        return true;
    evaluated_ = payload_name;
    const Datum value = ExecEvalExpr(payload_, context_, &is_null);
    change.has_new_payload = true;
    change.new_payload_is_null = is_null;
    change.new_payload_is_json =
        !is_null && (payload_type_ == JSONBOID || payload_type_ == JSONOID);
    if (!is_null)
        change.new_payload = bytes_of_payload(value, payload_type_);
    return true;
}

void Expressions::note_fault(const ErrorData& error, EventChange& change) const {
    char* text = psprintf("%s: %s", evaluated_, message_of(error));
    const int length = static_cast<int>(strlen(text));
    text[pg_mbcliplen(text, length, max_fault)] = '\0';
    change = {};
    change.fault = readable_utf8(text);
}

bool Expressions::evaluate(TupleTableSlot* row, EventChange& change) {
    change = {};
    if (!texts_.any())
        return true;
    if (!sandbox_.is_open())
        open();
    MemoryContext outer = CurrentMemoryContext;
    volatile bool selected = true;
    PG_TRY();
    {
        ResetExprContext(context_);
        MemoryContextSwitchTo(context_->ecxt_per_tuple_memory);
        sandbox_.enter();
        selected = select_and_change(row, change);
        sandbox_.leave();
        MemoryContextSwitchTo(outer);
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(outer);
        ErrorData* error = CopyErrorData();
        FlushErrorState();
        sandbox_.close();
        if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && !Sandbox::timed_out())
            ReThrowError(error);
        note_fault(*error, change);
        selected = true;
    }
    PG_END_TRY();
    return selected;
}

}  // namespace outbox
