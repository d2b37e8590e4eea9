// The owner of a database can run code in every session there: by replacing a function, by a trigger,
// or by types and operators that search_path finds. That code must not run as a powerful role: a
// superuser, or a role that reads or writes files of the server or runs its programs, because that
// makes it a superuser.
#pragma once

#include <string_view>

namespace outbox {

// For SET or SET LOCAL, before any name is looked up.
inline constexpr std::string_view safe_search_path = "search_path = pg_catalog, pg_temp";

// A query of one text: what makes the role of the session powerful, such as "is a member of
// pg_read_server_files", or NULL. It is about the role that has logged in: the owner of a database can
// set the default role of its sessions, and code that runs in one can set it back. It looks up no name
// in the search_path.
inline constexpr std::string_view power_question =
    "SELECT (SELECT CASE WHEN r.rolsuper THEN 'is or can become a superuser' "
    "                    ELSE pg_catalog.concat('is a member of ', r.rolname) END "
    "          FROM pg_catalog.pg_roles AS r "
    "         WHERE (r.rolsuper OR r.rolname OPERATOR(pg_catalog.=) ANY ("
    "                '{pg_execute_server_program,pg_read_server_files,pg_write_server_files}'"
    "                ::pg_catalog.name[])) "
    "           AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER') "
    "         ORDER BY r.rolsuper DESC, r.rolname LIMIT 1)";

}  // namespace outbox
