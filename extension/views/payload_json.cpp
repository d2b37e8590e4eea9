// Shows JSON payloads in views of the log (sql/pg_outbox/outbox_view.sql).
#include "extension/base/pg.hpp"

namespace outbox {

static Datum parse(const bytea* payload) {
    const char* bytes = VARDATA_ANY(payload);
    const int length = static_cast<int>(VARSIZE_ANY_EXHDR(payload));
    const char* converted = pg_any_to_server(bytes, length, PG_UTF8);
    const char* text = converted == bytes ? pnstrdup(bytes, length) : converted;
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
}

// Returns whether the error is about the value or its size: numbers, code points, depth, lengths.
static bool is_about_value(int sqlstate) {
    return ERRCODE_TO_CATEGORY(sqlstate) == ERRCODE_DATA_EXCEPTION ||
           ERRCODE_TO_CATEGORY(sqlstate) == ERRCODE_TO_CATEGORY(ERRCODE_PROGRAM_LIMIT_EXCEEDED);
}

// Needs no subtransaction, because parsing only allocates memory.
static bool try_parse(const bytea* payload, Datum* json) {
    MemoryContext memory = CurrentMemoryContext;
    volatile bool done = false;
    PG_TRY();
    {
        *json = parse(payload);
        done = true;
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(memory);
        if (!is_about_value(geterrcode()))
            PG_RE_THROW();
        FlushErrorState();
    }
    PG_END_TRY();
    return done;
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_payload_as_jsonb) {
    Datum json;
    if (!outbox::try_parse(PG_GETARG_BYTEA_PP(0), &json))
        PG_RETURN_NULL();
    return json;
}
