// The foreign-data wrapper pg_outbox: destinations are its servers. It has no handler, because
// there is nothing to read; its validator checks options when the statement runs.
#include "boundary.hpp"
#include "core/destination.hpp"
#include "options.hpp"
#include "pg.hpp"

OUTBOX_FUNCTION(outbox_validate_options) {
    using namespace outbox;
    const OptionTexts texts = option_texts(untransformRelOptions(PG_GETARG_DATUM(0)));
    const Oid catalog = PG_GETARG_OID(1);

    const CoreError error = call_core([&] {
        const std::vector<Option> options = to_options(texts);
        switch (catalog) {
            case ForeignServerRelationId:
                return validate_server_options(options);
            case UserMappingRelationId:
                return validate_mapping_options(options);
            default:
                return validate_no_options(options);
        }
    });
    if (error.failed)
        raise(error);
    PG_RETURN_VOID();
}
