"""Reads the objects of an extension from the catalogs, without OIDs, so that two of them can be compared."""

from __future__ import annotations

from database import Database

# {0} is the schema; the schema {0}_internal belongs to it. Each query returns an object, and what is
# known about it.
ACL = (
    "(SELECT string_agg(concat_ws(' ', CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, "
    "a.privilege_type, a.is_grantable), ', ' ORDER BY a.grantee::regrole::text, a.privilege_type) FROM aclexplode({}) AS a)"
)
QUERIES = [
    # Relations
    "SELECT pg_describe_object('pg_class'::regclass, c.oid, 0), concat_ws(' | ', c.relkind, c.relpersistence, c.reloptions, "
    "c.relowner::regrole, c.relrowsecurity, c.relispartition, pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(c.oid), "
    "obj_description(c.oid, 'pg_class'), CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END, "
    "CASE WHEN c.relkind = 'i' THEN pg_get_indexdef(c.oid) END, "
    "(SELECT string_agg(i.inhparent::regclass::text, ',') FROM pg_inherits AS i WHERE i.inhrelid = c.oid), "
    + ACL.format("coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::\"char\", c.relowner))")
    + ") FROM pg_class AS c WHERE c.relnamespace::regnamespace::text IN ('{0}', '{0}_internal')",
    # Columns, by their order
    "SELECT pg_describe_object('pg_class'::regclass, c.oid, a.attnum) , concat_ws(' | ', "
    "row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, "
    "a.attgenerated, pg_get_expr(d.adbin, d.adrelid), a.attstorage, a.attcollation::regcollation, "
    "col_description(c.oid, a.attnum), " + ACL.format("a.attacl") + ") "
    "FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
    "LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum "
    "WHERE c.relnamespace::regnamespace::text IN ('{0}', '{0}_internal')",
    # Sequences
    "SELECT 'values of ' || s.seqrelid::regclass, concat_ws(' | ', s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmin, "
    "s.seqmax, s.seqcache, s.seqcycle) FROM pg_sequence AS s JOIN pg_class AS c ON c.oid = s.seqrelid "
    "WHERE c.relnamespace::regnamespace::text IN ('{0}', '{0}_internal')",
    # Constraints, of tables and domains
    "SELECT pg_describe_object('pg_constraint'::regclass, oid, 0), concat_ws(' | ', pg_get_constraintdef(oid), convalidated) "
    "FROM pg_constraint WHERE connamespace::regnamespace::text IN ('{0}', '{0}_internal')",
    # Functions
    "SELECT pg_describe_object('pg_proc'::regclass, p.oid, 0), concat_ws(' | ', pg_get_functiondef(p.oid), p.proowner::regrole, "
    "obj_description(p.oid, 'pg_proc'), " + ACL.format("coalesce(p.proacl, acldefault('f', p.proowner))") + ") "
    "FROM pg_proc AS p WHERE p.pronamespace::regnamespace::text IN ('{0}', '{0}_internal')",
    # Types
    "SELECT pg_describe_object('pg_type'::regclass, t.oid, 0), concat_ws(' | ', t.typtype, t.typnotnull, t.typbasetype::regtype, "
    "t.typowner::regrole, obj_description(t.oid, 'pg_type'), "
    + ACL.format("coalesce(t.typacl, acldefault('T', t.typowner))")
    + ") "
    "FROM pg_type AS t WHERE t.typnamespace::regnamespace::text IN ('{0}', '{0}_internal')",
    # Triggers, without those of constraints
    "SELECT pg_describe_object('pg_trigger'::regclass, t.oid, 0), concat_ws(' | ', pg_get_triggerdef(t.oid), t.tgenabled, "
    "obj_description(t.oid, 'pg_trigger')) FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid "
    "WHERE NOT t.tgisinternal AND c.relnamespace::regnamespace::text IN ('{0}', '{0}_internal')",
    "SELECT pg_describe_object('pg_event_trigger'::regclass, t.oid, 0), concat_ws(' | ', t.evtevent, t.evttags, t.evtfoid::regproc, "
    "t.evtenabled, t.evtowner::regrole, obj_description(t.oid, 'pg_event_trigger')) "
    "FROM pg_event_trigger AS t JOIN pg_proc AS p ON p.oid = t.evtfoid "
    "WHERE p.pronamespace::regnamespace::text IN ('{0}', '{0}_internal')",
    # Schemas and the foreign-data wrapper
    "SELECT 'schema ' || n.nspname, concat_ws(' | ', n.nspowner::regrole, obj_description(n.oid, 'pg_namespace'), "
    + ACL.format("coalesce(n.nspacl, acldefault('n', n.nspowner))")
    + ") FROM pg_namespace AS n WHERE n.nspname IN ('{0}', '{0}_internal')",
    "SELECT 'wrapper ' || f.fdwname, concat_ws(' | ', f.fdwhandler::regproc, f.fdwvalidator::regproc, f.fdwoptions, "
    "obj_description(f.oid, 'pg_foreign_data_wrapper'), "
    + ACL.format("coalesce(f.fdwacl, acldefault('F', f.fdwowner))")
    + ") "
    "FROM pg_foreign_data_wrapper AS f WHERE f.fdwname = 'pg_{0}'",
    # The extension
    "SELECT 'member ' || pg_describe_object(d.classid, d.objid, d.objsubid), d.deptype "
    "FROM pg_depend AS d JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid "
    "WHERE e.extname = 'pg_{0}' AND d.deptype IN ('e', 'x')",
    "SELECT 'dumped ' || u.relation::oid::regclass, u.condition FROM pg_extension AS e, "
    "unnest(e.extconfig, e.extcondition) AS u(relation, condition) WHERE e.extname = 'pg_{0}'",
    "SELECT 'extension', concat_ws(' | ', extversion, extnamespace::regnamespace, obj_description(oid, 'pg_extension')) "
    "FROM pg_extension WHERE extname = 'pg_{0}'",
]


def objects_of(database: Database, schema: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for query in QUERIES:
        # Names of triggers and constraints are unique with their table, which the description has.
        for name, description in database.execute(query.replace("{0}", schema)):
            assert name not in found, name
            found[name] = description
    return found


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    names = sorted(before.keys() | after.keys())
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}
