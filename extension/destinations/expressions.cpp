#include "extension/destinations/expressions.hpp"

#include "core/content_type.hpp"
#include "core/destination.hpp"
#include "extension/base/expression_text.hpp"
#include "extension/base/owners_rights.hpp"
#include "extension/base/settings.hpp"
#include "extension/log/log.hpp"

namespace outbox {

// A transaction that evaluates expressions ends after about this time, so that it does not keep a
// snapshot for long.
static constexpr int milliseconds_at_once = 250;
static constexpr int max_fault = 1000;

static constexpr const char* filter_name = filter_option.name.data();
static constexpr const char* payload_name = payload_option.name.data();

// The columns of an event, under the names that they have in outbox.event.
static constexpr struct {
    const char* name;
    Oid type;
    LogColumn from;
} columns[] = {{"event_id", UUIDOID, LogEventId},
               {"topic", TEXTOID, LogTopic},
               {"aggregate_type", TEXTOID, LogAggregateType},
               {"aggregate_id", TEXTOID, LogAggregateId},
               {"event_type", TEXTOID, LogEventType},
               {"version", INT8OID, LogVersion},
               {"schema_version", INT4OID, LogSchemaVersion},
               {"ordering_key", TEXTOID, LogOrderingKey},
               {"content_type", TEXTOID, LogContentType},
               {"payload", JSONBOID, LogPayload},
               {"headers", JSONBOID, LogHeaders},
               {"occurred_at", TIMESTAMPTZOID, LogOccurredAt},
               {"source_event_id", UUIDOID, LogSourceEventId},
               {"position", INT8OID, LogPosition}};
static constexpr AttrNumber payload_column = 10;
static_assert(columns[payload_column - 1].from == LogPayload);

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
// Analysis
// -------------------------------------------------------------------------------------------------

static Node* find_column(ParseState*, ColumnRef* reference, Node* found) {
    Node* name = static_cast<Node*>(linitial(reference->fields));
    if (found != nullptr || list_length(reference->fields) != 1 || !IsA(name, String))
        return nullptr;
    for (size_t i = 0; i < lengthof(columns); i++)
        if (strcmp(strVal(name), columns[i].name) == 0)
            return reinterpret_cast<Node*>(makeVar(1, static_cast<AttrNumber>(i + 1),
                                                   columns[i].type, -1,
                                                   get_typcollation(columns[i].type), 0));
    return nullptr;
}

[[noreturn]] static void refuse(const char* what, const char* option) {
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("%s are not allowed in option \"%s\"", what, option),
                    errhint("It is an expression over the columns of one event.")));
    pg_unreachable();
}

static void refuse_more_than_one_event(const ParseState* state, Node* expression,
                                       const char* option) {
    if (state->p_hasSubLinks)
        refuse("subqueries", option);
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

static Node* analyze(const char* text, const char* option) {
    const ExpressionText expression = {text, psprintf("option \"%s\"", option),
                                       psprintf("option \"%s\" of a destination", option)};
    const ExpressionErrors errors(expression);
    ParseState* state = make_parsestate(nullptr);
    state->p_sourcetext = psprintf("(%s\n)", text);
    state->p_post_columnref_hook = find_column;
    Node* node = transformExpr(state, parse_expression(expression), EXPR_KIND_OTHER);
    refuse_more_than_one_event(state, node, option);
    node = option == filter_name ? coerce_to_boolean(state, node, psprintf("option \"%s\"", option))
                                 : coerce_payload(state, node);
    assign_expr_collations(state, node);
    refuse_unfit_functions(node, option);
    errors.end();
    return node;
}

void check_expressions(const ExpressionTexts& texts) {
    const OwnersRights rights(GetUserId());
    if (texts.filter != nullptr)
        check_rights(analyze(texts.filter, filter_name), nullptr);
    if (texts.payload != nullptr)
        check_rights(analyze(texts.payload, payload_name), nullptr);
    rights.give_back();
}

// -------------------------------------------------------------------------------------------------
// Time
// -------------------------------------------------------------------------------------------------

static volatile sig_atomic_t timed_out = false;

// From version 17 on, a function may catch the first cancellation. A worker does not wait for what
// comes after that.
static void time_is_over() {
    if (timed_out && MyBackendType == B_BG_WORKER)
        ProcDiePending = true;
    timed_out = true;
    QueryCancelPending = true;
    InterruptPending = true;
    SetLatch(MyLatch);
}

static TimeoutId time_limit() {
    static const TimeoutId id = RegisterTimeout(USER_TIMEOUT, time_is_over);
    return id;
}

static void start_clock() {
    timed_out = false;
    const int limit = settings::expression_timeout;
    enable_timeout_every(time_limit(), TimestampTzPlusMilliseconds(GetCurrentTimestamp(), limit),
                         limit);
}

// An evaluation that ended in time must not be cancelled afterwards.
static void stop_clock() {
    disable_timeout(time_limit(), false);
    if (timed_out)
        QueryCancelPending = false;
}

// -------------------------------------------------------------------------------------------------
// Subtransactions
// -------------------------------------------------------------------------------------------------

// The caller goes on with its own memory and resources, which outlive the subtransaction.
void Expressions::open_subtransaction() {
    MemoryContext outer = CurrentMemoryContext;
    resources_ = CurrentResourceOwner;
    BeginInternalSubTransaction(nullptr);
    own_resources_ = CurrentResourceOwner;
    open_ = true;
    // The end of the subtransaction gives all of this back.
    [[maybe_unused]] const OwnersRights rights(owner_);
    XactReadOnly = true;
    EnterParallelMode();
    start_clock();
    prepare();
    stop_clock();
    ExitParallelMode();
    MemoryContextSwitchTo(outer);
    CurrentResourceOwner = resources_;
}

void Expressions::roll_back() {
    MemoryContext outer = CurrentMemoryContext;
    open_ = false;
    RollbackAndReleaseCurrentSubTransaction();
    MemoryContextSwitchTo(outer);
    CurrentResourceOwner = resources_;
}

// Any error concerns all events: there is none yet.
char* Expressions::begin() {
    MemoryContext outer = CurrentMemoryContext;
    char* volatile trouble = nullptr;
    began_at_ = GetCurrentTimestamp();
    if (!texts_.any())
        return nullptr;
    PG_TRY();
    { open_subtransaction(); }
    PG_CATCH();
    {
        MemoryContextSwitchTo(outer);
        const ErrorData* error = CopyErrorData();
        FlushErrorState();
        stop_clock();
        roll_back();
        char* text = error->detail != nullptr ? psprintf("%s (%s)", error->message, error->detail)
                                              : error->message;
        trouble = pg_server_to_any(text, static_cast<int>(strlen(text)), PG_UTF8);
    }
    PG_END_TRY();
    return trouble;
}

void Expressions::end() {
    if (!open_)
        return;
    CurrentResourceOwner = own_resources_;
    FreeExprContext(context_, true);
    roll_back();
}

bool Expressions::took_long() const {
    return TimestampDifferenceExceeds(began_at_, GetCurrentTimestamp(), milliseconds_at_once);
}

// -------------------------------------------------------------------------------------------------
// Evaluation
// -------------------------------------------------------------------------------------------------

static TupleDesc form_of_events() {
    TupleDesc form = CreateTemplateTupleDesc(lengthof(columns));
    for (size_t i = 0; i < lengthof(columns); i++)
        TupleDescInitEntry(form, static_cast<AttrNumber>(i + 1), columns[i].name, columns[i].type,
                           -1, 0);
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
        Node* node = analyze(texts_.filter, filter_name);
        reads_payload_ |= reads_payload(node, nullptr);
        filter_ = ExecInitExpr(expression_planner(reinterpret_cast<Expr*>(node)), nullptr);
    }
    if (texts_.payload != nullptr) {
        Node* node = analyze(texts_.payload, payload_name);
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
    for (size_t i = 0; i < lengthof(columns); i++) {
        event_->tts_values[i] = row->tts_values[columns[i].from];
        event_->tts_isnull[i] = row->tts_isnull[columns[i].from];
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
    const char* message = timed_out
                              ? psprintf("it took longer than outbox.expression_timeout (%d ms)",
                                         settings::expression_timeout)
                              : error.message;
    char* text = psprintf("%s: %s", evaluated_, message);
    const int length = static_cast<int>(strlen(text));
    text[pg_mbcliplen(text, length, max_fault)] = '\0';
    change = {};
    change.fault = utf8_of(CStringGetTextDatum(text));
}

bool Expressions::evaluate(TupleTableSlot* row, EventChange& change) {
    change = {};
    if (!texts_.any())
        return true;
    if (!open_)
        open_subtransaction();
    MemoryContext outer = CurrentMemoryContext;
    volatile bool selected = true;
    PG_TRY();
    {
        CurrentResourceOwner = own_resources_;
        ResetExprContext(context_);
        MemoryContextSwitchTo(context_->ecxt_per_tuple_memory);
        EnterParallelMode();
        start_clock();
        selected = select_and_change(row, change);
        stop_clock();
        ExitParallelMode();
        MemoryContextSwitchTo(outer);
        CurrentResourceOwner = resources_;
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(outer);
        ErrorData* error = CopyErrorData();
        FlushErrorState();
        stop_clock();
        roll_back();
        if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && !timed_out)
            ReThrowError(error);
        note_fault(*error, change);
        selected = true;
    }
    PG_END_TRY();
    return selected;
}

}  // namespace outbox
