// Checks the topics to which outbox.producer limits a role.
//
// The role is, for outbox.enqueue(), the current user, as for EXECUTE on it: the role of SET ROLE,
// or the owner of a SECURITY DEFINER function. For captured tables it is the owner of the table,
// and for a view of the log the owner of the view. A role also has the topics of the roles whose
// rights it has; topics of grant_capture() are for captured tables only. A role without topics may
// produce nothing. A role with the rights of the owner of outbox.producer is not limited, because
// it could change the table.
//
// The result is cached for the session, until outbox.producer or any role changes.
#include "extension/produce/producer.hpp"

#include <string>
#include <string_view>
#include <unordered_map>

#include "core/topic_filter.hpp"
#include "extension/base/boundary.hpp"
#include "extension/base/table_form.hpp"

namespace outbox {

// Columns of outbox.producer (zero-based).
enum ProducerColumn {
    ProducerRole,
    ProducerTopics,
    ProducerGrantedBy,
    ProducerGrantedAt,
    ProducerRightTo
};

struct Producer {
    TopicFilter filter;  // matches everything unless the role is limited
    std::string topics;  // as granted
    bool has_none = false;
};

static std::unordered_map<Oid, Producer> producers[2];  // by Produces, then by role
static bool producers_valid = false;
static Oid producer_table = InvalidOid;

static void invalidate_table(Datum, Oid relation) {
    if (relation == InvalidOid || relation == producer_table)
        producers_valid = false;
}

static void invalidate_roles(Datum, int, uint32) {
    producers_valid = false;
}

static void register_callbacks() {
    static bool registered = false;
    if (registered)
        return;
    CacheRegisterRelcacheCallback(invalidate_table, 0);
    // Catalog caches that has_privs_of_role() reads.
    for (const auto cache : {AUTHMEMROLEMEM, AUTHOID, DATABASEOID})
        CacheRegisterSyscacheCallback(cache, invalidate_roles, 0);
    registered = true;
}

// The values are not trusted, because constraints can be dropped.
static bool concerns(const TupleTableSlot* row, Oid role, Produces produces) {
    if (row->tts_isnull[ProducerRole] || row->tts_isnull[ProducerTopics] ||
        row->tts_isnull[ProducerRightTo])
        return false;
    if (produces == Produces::by_enqueue &&
        strcmp(TextDatumGetCString(row->tts_values[ProducerRightTo]), "produce") != 0)
        return false;
    return has_privs_of_role(role, DatumGetObjectId(row->tts_values[ProducerRole]));
}

// Returns the lists of all rows that apply to the role, joined, possibly empty; nullptr if the role
// is not limited.
static const char* topics_granted(Oid role, Produces produces) {
    producer_table = get_relname_relid("producer", get_namespace_oid("outbox", false));
    Relation table = open_own_table(producer_table, AccessShareLock);
    static constexpr Oid types[] = {REGROLEOID, TEXTOID, NAMEOID, TIMESTAMPTZOID, TEXTOID};
    check_columns(table, types, true);
    StringInfoData topics;
    initStringInfo(&topics);
    const bool limited = !has_privs_of_role(role, table->rd_rel->relowner);
    if (limited) {
        // Reads the table as it is now, whatever the current transaction may see.
        ::Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
        TableScanDesc scan = table_beginscan(table, snapshot, 0, nullptr);
        TupleTableSlot* row = table_slot_create(table, nullptr);
        while (table_scan_getnextslot(scan, ForwardScanDirection, row)) {
            slot_getallattrs(row);
            if (concerns(row, role, produces))
                appendStringInfo(&topics, "%s%s", topics.len > 0 ? ", " : "",
                                 TextDatumGetCString(row->tts_values[ProducerTopics]));
        }
        ExecDropSingleTupleTableSlot(row);
        table_endscan(scan);
        UnregisterSnapshot(snapshot);
    }
    table_close(table, AccessShareLock);
    return limited ? topics.data : nullptr;
}

static CoreError remember_producer(Oid role, Produces produces, const char* topics) {
    return call_core([&]() -> std::optional<Error> {
        Producer producer;
        producer.has_none = topics != nullptr && *topics == '\0';
        if (topics != nullptr && !producer.has_none) {
            Result<TopicFilter> filter = TopicFilter::parse(topics);
            if (!filter)
                return filter.error();
            producer = {std::move(filter.value()), topics, false};
        }
        producers[static_cast<int>(produces)].insert_or_assign(role, std::move(producer));
        return std::nullopt;
    });
}

static const Producer& producer_of(Oid role, Produces produces) {
    auto& known = producers[static_cast<int>(produces)];
    register_callbacks();
    for (int turn = 0; turn < max_turns; turn++) {
        if (!producers_valid) {
            for (auto& by_role : producers)
                by_role.clear();
            producers_valid = true;
        }
        if (const auto found = known.find(role); found != known.end())
            return found->second;
        const CoreError error = remember_producer(role, produces, topics_granted(role, produces));
        if (error.failed)
            raise(error);
    }
    return known.find(role)->second;
}

void check_may_produce(Datum topic, Oid role, Produces produces) {
    const Producer& producer = producer_of(role, produces);
    const text* value = DatumGetTextPP(topic);
    const std::string_view name{VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value)};
    if (producer.has_none || !producer.filter.matches(name))
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("permission denied for topic \"%.*s\"",
                               static_cast<int>(name.size()), name.data()),
                        producer.has_none
                            ? errdetail("Role \"%s\" may produce events of no topic.",
                                        GetUserNameFromId(role, false))
                            : errdetail("Role \"%s\" may produce events of the topics \"%s\".",
                                        GetUserNameFromId(role, false), producer.topics.c_str()),
                        produces == Produces::by_enqueue
                            ? errhint("Topics are granted by outbox.grant_produce().")
                            : errhint("Topics of captured tables are granted to their owners by "
                                      "outbox.grant_capture() and outbox.grant_produce().")));
}

}  // namespace outbox

// Checks the constraint of outbox.producer.
OUTBOX_FUNCTION(outbox_check_topics) {
    using namespace outbox;
    const char* topics = text_to_cstring(PG_GETARG_TEXT_PP(0));
    run_core([topics]() -> std::optional<Error> {
        const outbox::Result<TopicFilter> filter = TopicFilter::parse(topics);
        return filter ? std::nullopt : std::optional<Error>(filter.error());
    });
    PG_RETURN_BOOL(true);
}

OUTBOX_FUNCTION(outbox_table_changed) {
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("outbox_internal.table_changed() must be called as a trigger")));
    CacheInvalidateRelcache(reinterpret_cast<TriggerData*>(fcinfo->context)->tg_relation);
    return PointerGetDatum(nullptr);
}
