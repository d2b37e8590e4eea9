// Asks which roles own the code that a command may run in a database.
//
// A powerful role (core/powerful_role.hpp) works only where all that outboxctl calls belongs to
// superusers. The question and the calls are separate statements, so the answer must last, and it does
// without a lock: it rests on facts that only superusers can change. If a schema is there, belongs to a
// superuser, and gives other roles no right to create objects, triggers or foreign keys in it, others
// cannot drop, fill or alter it. A missing schema can be created by others at any time. So a powerful
// role calls nothing in it for as long as the session lasts.
#pragma once

#include <string>

#include "core/powerful_role.hpp"

namespace outboxctl {

// Returns a query of one row with four columns: the reason why the role is powerful, or NULL; an object
// of a role that is neither a superuser nor the role itself, as a sentence, or NULL; true if pg_outbox is
// installed; true if pg_inbox is.
inline std::string owners_question() {
    return "WITH schema AS (SELECT oid, nspname, nspowner, nspacl FROM pg_namespace "
           "  WHERE nspname IN ('outbox', 'outbox_internal', 'inbox', 'inbox_internal')), "
           "relation AS (SELECT c.oid, c.relname, c.relowner, c.relacl, s.nspname "
           "  FROM pg_class AS c JOIN schema AS s ON s.oid = c.relnamespace), "
           "part (role, what) AS ("
           "  SELECT d.datdba, format('Database \"%s\" belongs to', d.datname) "
           "    FROM pg_database AS d WHERE d.datname = current_database() "
           "  UNION ALL SELECT e.extowner, format('Extension %s belongs to', e.extname) "
           "    FROM pg_extension AS e WHERE e.extname IN ('pg_outbox', 'pg_inbox') "
           "  UNION ALL SELECT nspowner, format('Schema %s belongs to', nspname) FROM schema "
           "  UNION ALL SELECT a.grantee, format('Objects can be created in schema %s by', "
           "nspname) "
           "    FROM schema, aclexplode(nspacl) AS a WHERE a.privilege_type = 'CREATE' "
           "  UNION ALL SELECT relowner, format('Relation %s.%s belongs to', nspname, relname) "
           "    FROM relation "
           "  UNION ALL SELECT a.grantee, format('Triggers or foreign keys can be created on %s.%s "
           "by', "
           "                                     nspname, relname) "
           "    FROM (SELECT nspname, relname, relacl FROM relation UNION ALL "
           "          SELECT c.nspname, c.relname, attacl FROM relation AS c "
           "            JOIN pg_attribute ON attrelid = c.oid) AS r (nspname, relname, acl), "
           "         aclexplode(acl) AS a WHERE a.privilege_type IN ('TRIGGER', 'REFERENCES') "
           "  UNION ALL SELECT t.relowner, format('Table %s, with a foreign key, belongs to', "
           "t.oid::regclass) "
           "    FROM pg_constraint AS k JOIN relation AS c ON c.oid = k.confrelid "
           "    JOIN pg_class AS t ON t.oid = k.conrelid "
           "  UNION ALL SELECT p.proowner, format('Function %s.%s belongs to', nspname, proname) "
           "    FROM pg_proc AS p JOIN schema AS s ON s.oid = p.pronamespace "
           "  UNION ALL SELECT t.typowner, format('Type %s.%s belongs to', nspname, typname) "
           "    FROM pg_type AS t JOIN schema AS s ON s.oid = t.typnamespace "
           "  UNION ALL SELECT o.oprowner, format('Operator %s.%s belongs to', nspname, oprname) "
           "    FROM pg_operator AS o JOIN schema AS s ON s.oid = o.oprnamespace "
           "  UNION ALL SELECT p.proowner, format('The function of trigger %s belongs to', tgname) "
           "    FROM pg_trigger AS t JOIN relation AS c ON c.oid = t.tgrelid "
           "    JOIN pg_proc AS p ON p.oid = t.tgfoid) "
           "SELECT (" +
           std::string(outbox::power_question) +
           "), "
           "(SELECT what || coalesce(' role \"' || r.rolname || '\", which is not a superuser', "
           "                         ' every role') "
           "   FROM part LEFT JOIN pg_roles AS r ON r.oid = part.role "
           "  WHERE (r.rolsuper OR r.rolname = session_user) IS NOT true LIMIT 1), "
           "EXISTS (SELECT FROM relation WHERE nspname = 'outbox' AND relname = 'status'), "
           "EXISTS (SELECT FROM relation WHERE nspname = 'inbox' AND relname = 'status')";
}

}  // namespace outboxctl
