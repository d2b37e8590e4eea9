// The foreign-data wrapper pg_outbox; destinations are its foreign servers. It has no handler,
// because there is nothing to read. Its validator checks options when the statement runs, all but
// expressions, which expression_role.cpp checks: the validator does not know whose server it is, and
// ALTER SERVER shows it options that the statement does not set.
#include <algorithm>

#include "extension/base/boundary.hpp"
#include "extension/base/pg.hpp"
#include "extension/destinations/options.hpp"
#include "sinks/registry.hpp"

namespace outbox {

// The server process reads these files with its own rights, and they prove the server's identity. A
// role must not use that identity by naming a file.
static void check_may_name_keys(const OptionTexts& texts) {
    for (int i = 0; i < texts.count; i++)
        if (names_server_keys(texts.names[i]) && !superuser())
            ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                            errmsg("permission denied to set option \"%s\"", texts.names[i]),
                            errhint("Only superusers may set options that name keys of the server; "
                                    "others set the secret itself.")));
}

static void warn_of_missing_units(const OptionTexts& texts, const bool* lacking) {
    for (int i = 0; i < texts.count; i++)
        if (lacking[i])
            ereport(WARNING, (errmsg("option \"%s\" has no unit", texts.names[i]),
                              errdetail("\"%s\" means milliseconds.", texts.values[i]),
                              errhint("Write for example '10s'; units are ms, s, min and h.")));
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_validate_options) {
    using namespace outbox;
    List* given = untransformRelOptions(PG_GETARG_DATUM(0));
    const OptionTexts texts = option_texts(given);
    const Oid catalog = PG_GETARG_OID(1);
    if (catalog == UserMappingRelationId)
        check_may_name_keys(texts);

    const bool reads_files = may_read_files(GetUserId());
    auto* lacking = static_cast<bool*>(palloc0(sizeof(bool) * (texts.count + 1)));
    run_core([&] {
        const std::vector<Option> options = to_options(texts);
        switch (catalog) {
            case ForeignServerRelationId:
                std::transform(options.begin(), options.end(), lacking, lacks_unit);
                return validate_server_options(options, reads_files);
            case UserMappingRelationId:
                return validate_mapping_options(options);
            default:
                return validate_no_options(options);
        }
    });
    warn_of_missing_units(texts, lacking);
    PG_RETURN_VOID();
}
