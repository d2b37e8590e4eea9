#include "extension/base/drop_guard.hpp"

#include "extension/base/pg.hpp"
#include "extension/base/settings.hpp"

namespace outbox {

// Returns whether one of the objects that the statement names has this name.
static bool names(const DropStmt* drop, const char* name) {
    ListCell* cell;
    foreach (cell, drop->objects)
        if (IsA(lfirst(cell), String) && strcmp(strVal(lfirst(cell)), name) == 0)
            return true;
    return false;
}

static Oid owner_of_extension(Oid extension) {
    Oid owner = InvalidOid;
    Relation catalog = table_open(ExtensionRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(extension));
    SysScanDesc scan = systable_beginscan(catalog, ExtensionOidIndexId, true, nullptr, 1, &key);
    if (HeapTuple row = systable_getnext(scan); HeapTupleIsValid(row))
        owner = reinterpret_cast<Form_pg_extension>(GETSTRUCT(row))->extowner;
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);
    return owner;
}

// Returns whether the statement drops the extension, if the server lets this role execute it. A
// role that may not must not lock the log. The extension depends on its schema, its owner and, by
// its functions, on PL/pgSQL.
static bool drops_extension(const Node* statement, Oid extension) {
    if (IsA(statement, DropOwnedStmt)) {
        const Oid owner = owner_of_extension(extension);
        return list_member_oid(
                   roleSpecsToIds(reinterpret_cast<const DropOwnedStmt*>(statement)->roles),
                   owner) &&
               has_privs_of_role(GetUserId(), owner);
    }
    const auto* drop = reinterpret_cast<const DropStmt*>(statement);
    const bool cascades = drop->behavior == DROP_CASCADE;
    if (drop->removeType == OBJECT_SCHEMA) {
        const Oid schema = get_namespace_oid("outbox", true);
        return cascades && names(drop, "outbox") && OidIsValid(schema) &&
               compat::owns_schema(schema, GetUserId());
    }
    if (drop->removeType != OBJECT_EXTENSION)
        return false;
    const Oid language = get_extension_oid("plpgsql", true);
    return (names(drop, "pg_outbox") && compat::owns_extension(extension, GetUserId())) ||
           (cascades && names(drop, "plpgsql") && OidIsValid(language) &&
            compat::owns_extension(language, GetUserId()));
}

// Returns the function of the extension that counts; InvalidOid if it is missing.
static Oid find_counter(Oid extension) {
    char schema[] = "outbox_internal";
    char function[] = "undelivered";
    const Oid counter =
        LookupFuncName(list_make2(makeString(schema), makeString(function)), 0, nullptr, true);
    return OidIsValid(counter) && getExtensionOfObject(ProcedureRelationId, counter) == extension
               ? counter
               : InvalidOid;
}

static char* text_of(HeapTupleHeader row, const char* attribute) {
    bool is_null;
    const Datum value = GetAttributeByName(row, attribute, &is_null);
    return is_null ? nullptr : TextDatumGetCString(value);
}

Undelivered check_drop(const Node* statement) {
    if ((!IsA(statement, DropStmt) && !IsA(statement, DropOwnedStmt)) || RecoveryInProgress() ||
        XactReadOnly)
        return {};
    const Oid extension = get_extension_oid("pg_outbox", true);
    if (!OidIsValid(extension) || !drops_extension(statement, extension))
        return {};
    // The drop locks the extension first as well. Workers lock it before they use the log.
    LockDatabaseObject(ExtensionRelationId, extension, 0, AccessExclusiveLock);
    const Oid counter = find_counter(extension);
    if (!OidIsValid(counter))
        return {};

    PushActiveSnapshot(GetTransactionSnapshot());
    HeapTupleHeader row = DatumGetHeapTupleHeader(OidFunctionCall0(counter));
    PopActiveSnapshot();
    const Undelivered lost = {text_of(row, "events"), text_of(row, "by_destination")};
    if (lost.events != nullptr && !settings::allow_drop_with_undelivered)
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("events of extension \"pg_outbox\" are not delivered: %s", lost.events),
                 errdetail_internal("%s.", lost.by_destination),
                 errhint("Wait until they are delivered, or, as a superuser, SET "
                         "outbox.allow_drop_with_undelivered = on to lose them.")));
    return lost;
}

void warn_of_drop(const Undelivered& lost) {
    if (lost.events != nullptr)
        ereport(WARNING, (errmsg("dropped extension \"pg_outbox\" with events that were not "
                                 "delivered: %s",
                                 lost.events),
                          errdetail_internal("%s.", lost.by_destination)));
}

}  // namespace outbox
