// The foreign-data wrapper pg_outbox: destinations are its servers. It has no handler, because there
// is nothing to read; its validator checks options when the statement runs.
#include <string>
#include <vector>

#include "boundary.hpp"
#include "core/destination.hpp"
#include "pg.hpp"

namespace outbox {

// Plain copies of the options, made before any C++ object exists.
struct OptionTexts {
    int count;
    const char** names;
    const char** values;
};

static OptionTexts option_texts(Datum array) {
    List* options = untransformRelOptions(array);
    OptionTexts texts{};
    texts.names = static_cast<const char**>(palloc(sizeof(char*) * (list_length(options) + 1)));
    texts.values = static_cast<const char**>(palloc(sizeof(char*) * (list_length(options) + 1)));
    ListCell* cell;
    foreach (cell, options) {
        DefElem* option = lfirst_node(DefElem, cell);
        texts.names[texts.count] = option->defname;
        texts.values[texts.count] = defGetString(option);
        texts.count++;
    }
    return texts;
}

static std::vector<Option> to_options(const OptionTexts& texts) {
    std::vector<Option> options;
    for (int i = 0; i < texts.count; i++)
        options.push_back({texts.names[i], texts.values[i]});
    return options;
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_validate_options) {
    using namespace outbox;
    const OptionTexts texts = option_texts(PG_GETARG_DATUM(0));
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
