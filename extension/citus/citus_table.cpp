#include "extension/citus/citus_table.hpp"

#include "extension/base/owners_rights.hpp"
#include "extension/base/table_form.hpp"
#include "extension/capture/capture.hpp"

namespace outbox {

static CitusType type_called(const char* name) {
    if (name == nullptr)
        return CitusType::none;
    return strcmp(name, "distributed") == 0 ? CitusType::distributed
           : strcmp(name, "reference") == 0 ? CitusType::reference
           : strcmp(name, "local") == 0     ? CitusType::local
                                            : CitusType::shard;
}

// The result lives in the memory context of the caller.
static char* text_of_column(int column) {
    return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column);
}

static CitusCapture look_up(Oid table, MemoryContext caller) {
    Oid type = REGCLASSOID;
    Datum argument = ObjectIdGetDatum(table);
    SPI_connect();
    if (SPI_execute_with_args("SELECT type, argument, captured_type "
                              "FROM outbox_internal.citus_capture($1)",
                              1, &type, &argument, nullptr, false, 1) != SPI_OK_SELECT ||
        SPI_processed != 1)
        elog(ERROR, "cannot look up table %u", table);
    const char* text = text_of_column(2);
    CitusCapture capture = {type_called(text_of_column(1)), type_called(text_of_column(3)),
                            text != nullptr ? MemoryContextStrdup(caller, text) : nullptr};
    SPI_finish();
    return capture;
}

CitusCapture find_citus_capture(Oid table) {
    if (!OidIsValid(get_extension_oid("citus", true)))
        return {CitusType::none, CitusType::none, nullptr};
    const OwnersRights rights(owner_of(find_own_table("captured")));
    const CitusCapture capture = look_up(table, CurrentMemoryContext);
    rights.give_back();
    return capture;
}

void check_citus_type(CitusType type, const char* table) {
    if (type == CitusType::reference)
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("reference table \"%s\" cannot be captured", table),
                        errdetail("Each node has a copy of it, and each would write the event."),
                        errhint("Call outbox.enqueue() in the transaction that changes it.")));
    if (type == CitusType::shard)
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is a shard of a distributed table", table),
                        errhint("Capture the distributed table, on the coordinator.")));
}

void check_may_capture(Oid role) {
    Oid type = NAMEOID;
    Datum name = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(role, false)));
    const OwnersRights rights(owner_of(find_own_table("captured")));
    SPI_connect();
    if (SPI_execute_with_args("SELECT outbox_internal.check_may_capture($1)", 1, &type, &name,
                              nullptr, false, 1) != SPI_OK_SELECT)
        elog(ERROR, "cannot look up the rights of a role");
    SPI_finish();
    rights.give_back();
}

void check_citus_fire(CitusType type, const char* fire, const char* table) {
    if (type != CitusType::none && strcmp(fire, "origin") != 0)
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("table \"%s\" cannot be captured with fire => '%s'", table, fire),
                        errdetail("Citus moves shards by replication, and rows that are moved "
                                  "would become events."),
                        errhint("Leave fire out.")));
}

void check_not_of_citus(Oid table) {
    if (find_citus_capture(table).type != CitusType::none)
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("table \"%s\" of Citus cannot be backfilled", get_rel_name(table)),
                 errdetail("Its rows are on several nodes, and may move while they are read."),
                 errhint("An UPDATE that changes a captured column of each row makes an event of "
                         "each.")));
}

void allow_distributed_triggers() {
    static const char* const setting = "citus.enable_unsafe_triggers";
    if (GetConfigOption(setting, true, false) != nullptr)
        set_config_option(setting, "on", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
                          false);
}

bool is_trigger_called(const char* trigger, const char* name) {
    const size_t length = strlen(name);
    if (strncmp(trigger, name, length) != 0)
        return false;
    const char* rest = trigger + length;
    return *rest == '\0' ||
           (*rest == '_' && rest[1] != '\0' && strspn(rest + 1, "0123456789") == strlen(rest + 1));
}

}  // namespace outbox
