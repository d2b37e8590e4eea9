"""State that no attack may change: ownership, privileges, code, and data of a victim.

Take a `snapshot` before and after; `changes` returns the differences.
"""

from __future__ import annotations

from typing import Any

import psycopg

# Each returns (key, everything about it). %(role)s is the attacker, which may change its own objects.
QUERIES = {
    "role": "SELECT rolname, (rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls, rolcanlogin, rolconfig)::text FROM pg_roles",
    "password": "SELECT rolname, coalesce(rolpassword, '') FROM pg_authid",
    "membership": "SELECT roleid::regrole || ' to ' || member::regrole, admin_option::text FROM pg_auth_members",
    "database": "SELECT datname, (datdba::regrole, datacl, datallowconn)::text FROM pg_database",
    "setting": "SELECT setdatabase || ' ' || setrole, setconfig::text FROM pg_db_role_setting WHERE setrole <> to_regrole(%(role)s)",
    "schema": "SELECT nspname, (nspowner::regrole, nspacl)::text FROM pg_namespace WHERE nspowner <> to_regrole(%(role)s) "
    "  AND nspname !~ '^pg_(temp|toast_temp)'",
    "relation": "SELECT n.nspname || '.' || c.relname, (relkind, relowner::regrole, relacl, relrowsecurity, reloptions)::text "
    "  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE relowner <> to_regrole(%(role)s) "
    "  AND nspname !~ '^pg_' AND (relkind NOT IN ('i', 'I') OR nspname NOT IN ('outbox', 'inbox'))",
    "column": "SELECT attrelid::regclass || '.' || attnum, (attname, atttypid::regtype, attnotnull, attacl)::text FROM pg_attribute "
    "  JOIN pg_class AS c ON c.oid = attrelid JOIN pg_namespace AS n ON n.oid = relnamespace "
    "  WHERE relowner <> to_regrole(%(role)s) AND nspname !~ '^pg_' AND attnum > 0 AND relkind NOT IN ('i', 'I')",
    "function": "SELECT p.oid::regprocedure::text, (proowner::regrole, prosecdef, proconfig, proacl, md5(prosrc), "
    "  md5(prosqlbody::text))::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace "
    "  WHERE proowner <> to_regrole(%(role)s) AND nspname !~ '^pg_(temp|toast)'",
    "type": "SELECT t.oid::regtype::text, (typowner::regrole, typacl)::text FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = typnamespace "
    "  WHERE typowner <> to_regrole(%(role)s) AND nspname !~ '^pg_'",
    "trigger": "SELECT tgrelid::regclass || ' ' || tgname, (tgfoid::regprocedure, tgenabled, encode(tgargs, 'escape'))::text "
    "  FROM pg_trigger JOIN pg_class AS c ON c.oid = tgrelid WHERE NOT tgisinternal AND relowner <> to_regrole(%(role)s)",
    "rule": "SELECT r.ev_class::regclass || ' ' || rulename, md5(ev_action::text) FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = ev_class "
    "  WHERE relowner <> to_regrole(%(role)s) AND r.oid >= 16384",
    "policy": "SELECT polrelid::regclass || ' ' || polname, polcmd::text FROM pg_policy JOIN pg_class AS c ON c.oid = polrelid "
    "  WHERE relowner <> to_regrole(%(role)s)",
    "event trigger": "SELECT evtname, (evtowner::regrole, evtfoid::regprocedure, evtenabled)::text FROM pg_event_trigger",
    "extension": "SELECT extname, (extowner::regrole, extversion, extconfig)::text FROM pg_extension",
    "language": "SELECT lanname, (lanowner::regrole, lanacl)::text FROM pg_language",
    "wrapper": "SELECT fdwname, (fdwowner::regrole, fdwacl, fdwvalidator::regproc)::text FROM pg_foreign_data_wrapper",
    "server": "SELECT srvname, (srvowner::regrole, srvacl, srvoptions)::text FROM pg_foreign_server "
    "  WHERE srvowner <> to_regrole(%(role)s)",
    "user mapping": "SELECT srvname || ' ' || usename, umoptions::text FROM pg_user_mappings",
    "default privilege": "SELECT (defaclrole::regrole, defaclnamespace, defaclobjtype)::text, defaclacl::text FROM pg_default_acl "
    "  WHERE defaclrole <> to_regrole(%(role)s)",
    "large object": "SELECT oid::text, lomowner::regrole::text FROM pg_largeobject_metadata WHERE lomowner <> to_regrole(%(role)s)",
    "security label": "SELECT (objoid, provider)::text, label FROM pg_seclabel",
    "producer": "SELECT role::text, topics FROM outbox.producer",
    "consumer": "SELECT name, c::text FROM inbox.consumer AS c WHERE role <> %(role)s",
    "subscription": "SELECT c.name || ' ' || s.event_type, s.handler::text FROM inbox.subscription AS s "
    "  JOIN inbox.consumer AS c ON c.id = consumer_id WHERE role <> %(role)s",
}  # fmt: skip
# Data of the victim, if there is one: schema `victim`, consumer `theirs`.
CONTENTS = {
    "message": "SELECT m.event_id || ' ' || c.name, md5(m::text) FROM inbox.message AS m JOIN inbox.consumer AS c ON c.id = consumer_id "
    "  WHERE role <> %(role)s",
    "dead message": "SELECT m.event_id || ' ' || c.name, md5(m::text) FROM inbox.dead_message AS m JOIN inbox.consumer AS c ON c.id = consumer_id "
    "  WHERE role <> %(role)s",
    "claim": "SELECT c.name || ' ' || l.ctid, md5(l::text) FROM inbox.claimed AS l JOIN inbox.consumer AS c ON c.id = consumer_id "
    "  WHERE role <> %(role)s",
    "waiting": "SELECT w.event_id || ' ' || c.name, md5(w::text) FROM inbox.waiting AS w JOIN inbox.consumer AS c ON c.id = consumer_id "
    "  WHERE role <> %(role)s",
    "applied": "SELECT p.event_id || ' ' || c.name, '' FROM inbox.processed AS p JOIN inbox.consumer AS c ON c.id = consumer_id "
    "  WHERE role <> %(role)s",
    "offset": "SELECT c.name || ' ' || o.ctid, md5(o::text) FROM inbox.consumer_offset AS o JOIN inbox.consumer AS c ON c.id = consumer_id "
    "  WHERE role <> %(role)s",
    "offset reset": "SELECT c.name || ' ' || o.ctid, md5(o::text) FROM inbox.offset_reset AS o JOIN inbox.consumer AS c ON c.id = consumer_id "
    "  WHERE role <> %(role)s",
    "gap": "SELECT c.name || ' ' || g.ctid, md5(g::text) FROM inbox.gap AS g JOIN inbox.consumer AS c ON c.id = consumer_id "
    "  WHERE role <> %(role)s",
    "tombstone": "SELECT projection::text || key, t::text FROM inbox.tombstone AS t WHERE projection::text ~ '^victim'",
    "captured": "SELECT relation::text, c::text FROM outbox.captured AS c WHERE relation::text ~ '^victim'",
    "lease": "SELECT (destination, lane, number)::text, (token, locked_until, taken, positions)::text FROM outbox.batch "
    "  WHERE destination = 'secret_pull' AND token IS NOT NULL",
    "endpoint": "SELECT server || '/' || name, e::text FROM outbox.endpoint AS e WHERE server = 'secret_hooks'",
    "backfill": "SELECT id::text, b::text FROM outbox.backfill_task AS b WHERE relation::text ~ '^victim'",
}  # fmt: skip


def snapshot(connection: psycopg.Connection, role: str, *, contents: bool = True) -> dict[str, str]:
    """Returns the state that a superuser sees."""
    found: dict[str, str] = {}
    queries = {**QUERIES, **(CONTENTS if contents else {})}
    tables = connection.execute(
        "SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace "
        "WHERE nspname = 'victim' AND relkind IN ('r', 'p', 'm')"
    ).fetchall()
    for (table,) in tables:
        queries[f"rows of {table}"] = f"SELECT t::text, '' FROM ONLY {table} AS t"
    for what, query in queries.items():
        parameters: Any = {"role": role} if "%(role)s" in query else None
        if parameters is None:
            query = query.replace("%%", "%")
        for key, value in connection.execute(query, parameters).fetchall():  # type: ignore[arg-type]
            found[f"{what} {key}"] = str(value)
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [
        f"{key}: {before.get(key, 'not there')} -> {after.get(key, 'gone')}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
