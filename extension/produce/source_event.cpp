#include "extension/produce/source_event.hpp"

namespace outbox {

const pg_uuid_t* claim_source_event(const Datum* values) {
    // This is a SECURITY DEFINER function in SQL. The caller has no privilege on the table behind
    // it, nor on the schema of the function, so LookupFuncName() would fail.
    Oid types[] = {UUIDOID, TEXTOID, TEXTOID, TEXTOID, UUIDOID};
    const Oid claim =
        GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum("claim_source_event"),
                        PointerGetDatum(buildoidvector(types, lengthof(types))),
                        ObjectIdGetDatum(get_namespace_oid("outbox_internal", false)));
    if (!OidIsValid(claim))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_FUNCTION),
                        errmsg("function outbox_internal.claim_source_event does not exist")));
    if (get_func_rettype(claim) != UUIDOID || get_func_retset(claim))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("\"claim_source_event\" of extension \"pg_outbox\" was altered"),
                        errdetail("It does not return a uuid.")));
    FmgrInfo function;
    fmgr_info(claim, &function);

    LOCAL_FCINFO(call, lengthof(types));
    InitFunctionCallInfoData(*call, &function, lengthof(types), InvalidOid, nullptr, nullptr);
    const Datum arguments[] = {values[LogSourceEventId], values[LogAggregateType],
                               values[LogAggregateId], values[LogEventType], values[LogEventId]};
    for (size_t i = 0; i < lengthof(types); i++) {
        call->args[i].value = arguments[i];
        call->args[i].isnull = false;
    }
    const Datum earlier = FunctionCallInvoke(call);
    return call->isnull ? nullptr : DatumGetUUIDP(earlier);
}

}  // namespace outbox
