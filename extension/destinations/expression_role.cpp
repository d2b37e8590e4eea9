#include "extension/destinations/expression_role.hpp"

#include "extension/base/table_form.hpp"
#include "extension/destinations/expression_analysis.hpp"

namespace outbox {

// Columns of outbox.expression.
enum ExpressionColumn {
    ExpressionDestination,
    ExpressionOption,
    ExpressionOwner,
    ExpressionColumns
};

// The role that owned a destination when each option was set; InvalidOid if nobody knows.
struct FormerOwners {
    Oid filter = InvalidOid;
    Oid payload = InvalidOid;
};

static void take_row(TupleTableSlot* row, const char* destination, FormerOwners& owners) {
    slot_getallattrs(row);
    for (int column = 0; column < ExpressionColumns; column++)
        if (row->tts_isnull[column])
            return;
    if (strcmp(NameStr(*DatumGetName(row->tts_values[ExpressionDestination])), destination) != 0)
        return;
    const char* option = TextDatumGetCString(row->tts_values[ExpressionOption]);
    const Oid owner = DatumGetObjectId(row->tts_values[ExpressionOwner]);
    if (strcmp(option, filter_name) == 0)
        owners.filter = owner;
    else if (strcmp(option, payload_name) == 0)
        owners.payload = owner;
}

static FormerOwners owners_when_set(const char* destination) {
    static constexpr Oid types[] = {NAMEOID, TEXTOID, OIDOID};
    static_assert(lengthof(types) == ExpressionColumns);
    Relation table = open_own_table(find_own_table("expression"), AccessShareLock);
    check_columns(table, types);
    ::Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    TableScanDesc scan = table_beginscan(table, snapshot, 0, nullptr);
    TupleTableSlot* row = table_slot_create(table, nullptr);
    FormerOwners owners;
    while (table_scan_getnextslot(scan, ForwardScanDirection, row))
        take_row(row, destination, owners);
    ExecDropSingleTupleTableSlot(row);
    table_endscan(scan);
    UnregisterSnapshot(snapshot);
    table_close(table, AccessShareLock);
    return owners;
}

static const char* why_it_waits(const char* option, Oid former, Oid owner) {
    const char* name = OidIsValid(former) ? GetUserNameFromId(former, true) : nullptr;
    const char* since = name != nullptr
                            ? psprintf("role \"%s\" owned the destination when it was set", name)
                            : "the role that owned the destination when it was set is not known";
    return psprintf(
        "option \"%s\" waits for role \"%s\" to set it again, as in ALTER SERVER ... OPTIONS (SET "
        "%s '...'): %s",
        option, GetUserNameFromId(owner, true), option, since);
}

static const char* look(const char* option, Oid former, Oid owner) {
    if (OidIsValid(former) && has_privs_of_role(former, owner))
        return nullptr;
    return why_it_waits(option, former, owner);
}

const char* find_role(const char* destination, Oid owner, const ExpressionTexts& texts, Oid& role) {
    const FormerOwners former = owners_when_set(destination);
    const char* wait = nullptr;
    if (texts.filter != nullptr)
        wait = look(filter_name, former.filter, owner);
    if (texts.payload != nullptr && wait == nullptr)
        wait = look(payload_name, former.payload, owner);
    role = without_superuser(owner);
    return wait;
}

bool may_run_for(Oid caller, Oid owner) {
    return has_privs_of_role(caller, owner) && superuser_arg(caller) == superuser_arg(owner);
}

// -------------------------------------------------------------------------------------------------
// The event trigger
// -------------------------------------------------------------------------------------------------

// Returns false for a server of another wrapper, and for one that this transaction has not written:
// CREATE SERVER IF NOT EXISTS has left it as it was.
static bool is_written_destination(Oid server, Oid wrapper) {
    HeapTuple row = SearchSysCache1(FOREIGNSERVEROID, ObjectIdGetDatum(server));
    if (!HeapTupleIsValid(row))
        return false;
    const bool result = strcmp(GetForeignDataWrapper(wrapper)->fdwname, "pg_outbox") == 0 &&
                        TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(row->t_data));
    ReleaseSysCache(row);
    return result;
}

struct GivenExpression {
    const char* text;
    const char* option;
};

static Node* analyze_given(void* argument) {
    const auto* given = static_cast<const GivenExpression*>(argument);
    return analyze_expression(given->text, given->option);
}

// Superusers restore dumps: functions get their privileges only later.
static void check_expression(const ForeignServer& server, GivenExpression given) {
    MemoryContext outer = CurrentMemoryContext;
    const Oid role = without_superuser(server.owner);
    PG_TRY();
    { make_in_sandbox(role, analyze_given, &given); }
    PG_CATCH();
    {
        MemoryContextSwitchTo(outer);
        ErrorData* error = CopyErrorData();
        if (role != nobody || error->sqlerrcode != ERRCODE_INSUFFICIENT_PRIVILEGE)
            PG_RE_THROW();
        FlushErrorState();
        ereport(
            WARNING,
            (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
             errmsg("option \"%s\" cannot be evaluated: %s", given.option, error->message),
             errdetail("A superuser owns the destination, and its expressions have the rights of "
                       "everybody only."),
             errhint(
                 "ALTER SERVER ... OWNER TO a role that has the right, or grant it to PUBLIC.")));
    }
    PG_END_TRY();
}

static void execute(const char* statement, const char* destination, const char* option, Oid owner) {
    Oid types[] = {NAMEOID, TEXTOID, OIDOID};
    Datum values[] = {DirectFunctionCall1(namein, CStringGetDatum(destination)),
                      CStringGetTextDatum(option), ObjectIdGetDatum(owner)};
    if (SPI_execute_with_args(statement, lengthof(types), types, values, nullptr, false, 0) < 0)
        elog(ERROR, "cannot write outbox.expression");
}

static void note_expression(const ForeignServer& server, const char* option, bool set) {
    SPI_connect();
    execute(set ? "INSERT INTO outbox.expression VALUES ($1, $2, $3) "
                  "ON CONFLICT (destination, option) DO UPDATE SET owner = excluded.owner"
                : "DELETE FROM outbox.expression WHERE destination = $1 AND option = $2",
            server.servername, option, server.owner);
    SPI_finish();
}

static void note_options(const char* name, List* options) {
    const ForeignServer* server = GetForeignServerByName(name, true);
    if (server == nullptr || !is_written_destination(server->serverid, server->fdwid))
        return;
    ListCell* cell;
    foreach (cell, options) {
        DefElem* given = lfirst_node(DefElem, cell);
        const char* option = expression_name(given->defname);
        if (option == nullptr)
            continue;
        const bool set = given->defaction != DEFELEM_DROP;
        if (set)
            check_expression(*server, {defGetString(given), option});
        note_expression(*server, option, set);
    }
}

}  // namespace outbox

// The statement that sets an expression checks it, as the role that it will run as.
OUTBOX_FUNCTION(outbox_note_expressions) {
    using namespace outbox;
    if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("note_expressions() must be called as an event trigger")));
    Node* statement = reinterpret_cast<EventTriggerData*>(fcinfo->context)->parsetree;
    if (IsA(statement, CreateForeignServerStmt)) {
        const auto* create = reinterpret_cast<CreateForeignServerStmt*>(statement);
        note_options(create->servername, create->options);
    } else if (IsA(statement, AlterForeignServerStmt)) {
        const auto* alter = reinterpret_cast<AlterForeignServerStmt*>(statement);
        note_options(alter->servername, alter->options);
    }
    return PointerGetDatum(nullptr);
}
