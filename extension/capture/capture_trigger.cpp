// The triggers of captured tables.
#include "extension/capture/capture_event.hpp"

namespace outbox {

static const Capture& capture_of(Relation table) {
    const Capture* capture = find_capture(table);
    if (capture == nullptr)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("table \"%s\" has a trigger that captures it, but is not captured",
                               RelationGetRelationName(table)),
                        errhint("Call outbox.capture(), or drop the trigger.")));
    return *capture;
}

static const TriggerData& trigger_data(FunctionCallInfo fcinfo, const char* function) {
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("outbox.%s() must be called as a trigger", function)));
    return *reinterpret_cast<TriggerData*>(fcinfo->context);
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_capture_row) {
    using namespace outbox;
    const TriggerData& trigger = trigger_data(fcinfo, "capture_row");
    if (!TRIGGER_FIRED_AFTER(trigger.tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger.tg_event))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("outbox.capture_row() must be fired AFTER and FOR EACH ROW")));
    check_may_enqueue();
    const Capture& capture = capture_of(trigger.tg_relation);
    if (TRIGGER_FIRED_BY_INSERT(trigger.tg_event))
        capture_insert(capture, trigger.tg_trigslot);
    else if (TRIGGER_FIRED_BY_UPDATE(trigger.tg_event))
        capture_update(capture, trigger.tg_trigslot, trigger.tg_newslot);
    else
        capture_delete(capture, trigger.tg_trigslot);
    return PointerGetDatum(nullptr);
}

OUTBOX_FUNCTION(outbox_capture_truncate) {
    using namespace outbox;
    const TriggerData& trigger = trigger_data(fcinfo, "capture_truncate");
    if (!TRIGGER_FIRED_BY_TRUNCATE(trigger.tg_event))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("outbox.capture_truncate() must be fired by TRUNCATE")));
    // Citus truncates the shards of a table whose own trigger has fired already.
    if (strcmp(trigger.tg_trigger->tgname, truncate_trigger_name) != 0)
        return PointerGetDatum(nullptr);
    if (TRIGGER_FIRED_BEFORE(trigger.tg_event))
        ereport(ERROR,
                (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                 errmsg("cannot truncate table \"%s\", because it is captured",
                        RelationGetRelationName(trigger.tg_relation)),
                 errdetail("There would be no events for its rows."),
                 errhint("Use DELETE, or capture it with on_truncate => 'announce' or 'ignore'.")));
    check_may_enqueue();
    capture_truncate(capture_of(trigger.tg_relation), trigger.tg_relation);
    return PointerGetDatum(nullptr);
}
