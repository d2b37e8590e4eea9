#include "log.hpp"

namespace outbox {

static LogRelations relations;
static bool relations_valid = false;

static void invalidate(Datum, Oid relation) {
    if (relation == InvalidOid || relation == relations.segment || relation == relations.positions)
        relations_valid = false;
}

const LogRelations* find_log_relations() {
    static bool registered = false;
    if (!registered) {
        CacheRegisterRelcacheCallback(invalidate, 0);
        registered = true;
    }
    if (!relations_valid) {
        const Oid schema = get_namespace_oid("outbox", true);
        if (!OidIsValid(schema))
            return nullptr;
        relations.segment = get_relname_relid("event_0", schema);
        relations.positions = get_relname_relid("event_position", schema);
        if (!OidIsValid(relations.segment) || !OidIsValid(relations.positions))
            return nullptr;
        relations_valid = true;
    }
    return &relations;
}

const LogRelations& log_relations() {
    const LogRelations* found = find_log_relations();
    if (found == nullptr)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                        errmsg("extension \"pg_outbox\" is not installed in this database"),
                        errhint("Run CREATE EXTENSION pg_outbox.")));
    return *found;
}

}  // namespace outbox
