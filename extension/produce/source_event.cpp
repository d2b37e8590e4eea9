#include "extension/produce/source_event.hpp"

namespace outbox {

const pg_uuid_t* claim_source_event(const Datum* values) {
    // A SECURITY DEFINER function in SQL: the caller has no privilege on the table behind it.
    Oid types[] = {UUIDOID, TEXTOID, TEXTOID, TEXTOID, UUIDOID};
    List* name =
        list_make2(makeString(pstrdup("outbox")), makeString(pstrdup("claim_source_event")));
    const Oid claim = LookupFuncName(name, lengthof(types), types, false);
    if (get_func_rettype(claim) != UUIDOID || get_func_retset(claim))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("\"claim_source_event\" of extension \"pg_outbox\" was altered"),
                        errdetail("It does not return an uuid.")));
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
