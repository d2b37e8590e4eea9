// The topics that outbox.producer limits a role to.
//
// Asked about is for outbox.enqueue() the current user, as for EXECUTE on it (after SET ROLE that
// role, in a SECURITY DEFINER function its owner); for what is captured the owner of the table, and
// for what is inserted into a view of the log the owner of the view. To the limits of a role, those
// of the roles whose rights it has are added. A role without any is not limited; nor is whoever has
// the rights of the owner of outbox.producer, who could change it anyway.
//
// What is found is kept for the session, until outbox.producer or any role changes.
#include "producer.hpp"

#include <string>
#include <string_view>
#include <unordered_map>

#include "boundary.hpp"
#include "core/topic_filter.hpp"
#include "table_form.hpp"

namespace outbox {

// Columns of outbox.producer (zero-based).
enum ProducerColumn { ProducerRole, ProducerTopics };

struct Producer {
    TopicFilter filter;  // everything, unless limited
    std::string topics;  // as granted
};

static std::unordered_map<Oid, Producer> producers;  // by role
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
    // What has_privs_of_role() reads.
    for (const auto cache : {AUTHMEMROLEMEM, AUTHOID, DATABASEOID})
        CacheRegisterSyscacheCallback(cache, invalidate_roles, 0);
    registered = true;
}

// The lists of all rows that concern the role, put together; nullptr: there is none.
static const char* topics_granted(Oid role) {
    producer_table = get_relname_relid("producer", get_namespace_oid("outbox", false));
    Relation table = table_open(producer_table, AccessShareLock);
    static constexpr Oid types[] = {REGROLEOID, TEXTOID};
    check_columns(table, types, true);
    StringInfoData topics;
    initStringInfo(&topics);
    if (!has_privs_of_role(role, table->rd_rel->relowner)) {
        // As it is now, whatever the transaction at hand may see.
        ::Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
        TableScanDesc scan = table_beginscan(table, snapshot, 0, nullptr);
        TupleTableSlot* row = table_slot_create(table, nullptr);
        while (table_scan_getnextslot(scan, ForwardScanDirection, row)) {
            slot_getallattrs(row);
            check_value(table, row, ProducerTopics);
            if (has_privs_of_role(role, DatumGetObjectId(row->tts_values[ProducerRole])))
                appendStringInfo(&topics, "%s%s", topics.len > 0 ? ", " : "",
                                 TextDatumGetCString(row->tts_values[ProducerTopics]));
        }
        ExecDropSingleTupleTableSlot(row);
        table_endscan(scan);
        UnregisterSnapshot(snapshot);
    }
    table_close(table, AccessShareLock);
    return topics.len > 0 ? topics.data : nullptr;
}

static CoreError remember_producer(Oid role, const char* topics) {
    return call_core([&]() -> std::optional<Error> {
        Producer producer;
        if (topics != nullptr) {
            Result<TopicFilter> filter = TopicFilter::parse(topics);
            if (!filter)
                return filter.error();
            producer = {std::move(filter.value()), topics};
        }
        producers.insert_or_assign(role, std::move(producer));
        return std::nullopt;
    });
}

static const Producer& producer_of(Oid role) {
    register_callbacks();
    // Reading the table takes a lock, and so may hear that what was just read is old.
    while (true) {
        if (!producers_valid) {
            producers.clear();
            producers_valid = true;
        }
        if (const auto found = producers.find(role); found != producers.end())
            return found->second;
        const CoreError error = remember_producer(role, topics_granted(role));
        if (error.failed)
            raise(error);
    }
}

void check_may_produce(Datum topic, Oid role) {
    const Producer& producer = producer_of(role);
    const text* value = DatumGetTextPP(topic);
    const std::string_view name{VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value)};
    if (!producer.filter.matches(name))
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                        errmsg("permission denied for topic \"%.*s\"",
                               static_cast<int>(name.size()), name.data()),
                        errdetail("Role \"%s\" may enqueue events of the topics \"%s\".",
                                  GetUserNameFromId(role, false), producer.topics.c_str()),
                        errhint("outbox.grant_produce() says which topics a role may use.")));
}

}  // namespace outbox

// For the constraint of outbox.producer.
OUTBOX_FUNCTION(outbox_check_topics) {
    using namespace outbox;
    const char* topics = text_to_cstring(PG_GETARG_TEXT_PP(0));
    const CoreError error = call_core([topics]() -> std::optional<Error> {
        const outbox::Result<TopicFilter> filter = TopicFilter::parse(topics);
        return filter ? std::nullopt : std::optional<Error>(filter.error());
    });
    if (error.failed)
        raise(error);
    PG_RETURN_BOOL(true);
}

OUTBOX_FUNCTION(outbox_table_changed) {
    if (!CALLED_AS_TRIGGER(fcinfo))
        ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
                        errmsg("outbox.table_changed() is a trigger")));
    CacheInvalidateRelcache(reinterpret_cast<TriggerData*>(fcinfo->context)->tg_relation);
    return PointerGetDatum(nullptr);
}
