// PostgreSQL runs code of a table's owner for other roles, functions of indexes in VACUUM or
// ANALYZE for example. Such code must not call functions that act for their caller.
#include "extension/base/caller.hpp"

#include "extension/base/boundary.hpp"

namespace outbox {

// A library that lets roles create extensions may run the script in such an operation. Nothing in ours
// calls code of others.
static bool in_own_script() {
    return creating_extension && CurrentExtensionObject == get_extension_oid("pg_outbox", true);
}

void refuse_restricted() {
    if (InSecurityRestrictedOperation() && !in_own_script())
        ereport(ERROR,
                (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                 errmsg("cannot act for a caller within a security-restricted operation"),
                 errhint("Functions of indexes, conditions of captures and materialized views "
                         "cannot call this function.")));
}

}  // namespace outbox

OUTBOX_FUNCTION(outbox_refuse_restricted) {
    outbox::refuse_restricted();
    PG_RETURN_VOID();
}
