// The owner of a database can run code in every session there: by replacing a function, by a trigger,
// or by types and operators that search_path finds. That code must not run as a superuser.
#pragma once

#include <string>
#include <string_view>

namespace outbox {

// To be sent before any name is looked up.
inline constexpr std::string_view safe_search_path = "SET search_path = pg_catalog, pg_temp";

// Returns a query of one boolean: whether the role of the session is a superuser, or a member of one
// and so able to become it, and an object of these schemas belongs to a role that is not. `schemas`
// is a list of literals.
//
// The setting is_superuser of the session is not used, because the owner of a database can set the
// default role of sessions.
inline std::string owners_question(std::string_view schemas) {
    return "WITH part AS (SELECT oid, nspowner FROM pg_namespace WHERE nspname IN (" +
           std::string(schemas) +
           ")), "
           "owners (owner) AS ("
           "  SELECT nspowner FROM part "
           "  UNION SELECT c.relowner FROM pg_class AS c JOIN part ON part.oid = c.relnamespace "
           "  UNION SELECT p.proowner FROM pg_proc AS p JOIN part ON part.oid = p.pronamespace "
           "  UNION SELECT t.typowner FROM pg_type AS t JOIN part ON part.oid = t.typnamespace "
           "  UNION SELECT o.oprowner FROM pg_operator AS o JOIN part ON part.oid = o.oprnamespace "
           "  UNION SELECT p.proowner FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid "
           "    JOIN part ON part.oid = c.relnamespace JOIN pg_proc AS p ON p.oid = t.tgfoid) "
           "SELECT EXISTS (SELECT FROM pg_roles AS r "
           "                WHERE r.rolsuper AND pg_has_role(session_user, r.oid, 'MEMBER')) "
           "   AND EXISTS (SELECT FROM owners JOIN pg_roles AS r ON r.oid = owners.owner "
           "                WHERE NOT r.rolsuper)";
}

}  // namespace outbox
