// outbox_internal.destination_option(): an option of a destination, or else the setting of the same
// name. It is written in C because it is called for every event in trouble.
#include "extension/base/boundary.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// The name may be that of an endpoint, <server>/<name>.
static const ForeignServer* server_of(const char* destination) {
    const ForeignServer* server = GetForeignServerByName(destination, true);
    const char* slash = strchr(destination, '/');
    if (server == nullptr && slash != nullptr)
        server = GetForeignServerByName(
            pnstrdup(destination, static_cast<Size>(slash - destination)), true);
    return server;
}

static const char* option_of_server(const char* destination, const char* option) {
    const ForeignServer* server = server_of(destination);
    if (server == nullptr ||
        strcmp(GetForeignDataWrapper(server->fdwid)->fdwname, "pg_outbox") != 0)
        return nullptr;
    ListCell* cell;
    foreach (cell, server->options) {
        auto* given = static_cast<DefElem*>(lfirst(cell));
        if (strcmp(given->defname, option) == 0)
            return defGetString(given);
    }
    return nullptr;
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_destination_option) {
    using namespace outbox;
    const char* option = text_to_cstring(PG_GETARG_TEXT_PP(1));
    const char* value = option_of_server(NameStr(*PG_GETARG_NAME(0)), option);
    if (value == nullptr)
        value = GetConfigOptionByName(psprintf("outbox.%s", option), nullptr, true);
    if (value == nullptr)
        PG_RETURN_NULL();
    PG_RETURN_TEXT_P(cstring_to_text(value));
}
