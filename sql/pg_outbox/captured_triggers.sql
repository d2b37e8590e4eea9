-- ---------------------------------------------------------------------------------------------
-- Triggers
-- ---------------------------------------------------------------------------------------------

-- Returns the table with all its partitions and children, except temporary tables of other
-- sessions.
CREATE FUNCTION outbox_internal.captured_tree("table" regclass)
RETURNS SETOF regclass
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE member(relation) AS (
        SELECT "table"::oid
        UNION
        SELECT i.inhrelid
          FROM member AS m
          JOIN pg_inherits AS i ON i.inhparent = m.relation
          JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relpersistence <> 't'
    )
    SELECT m.relation::regclass FROM member AS m;
END;

-- Records the columns and members of a captured table. Fires also when a dump is restored, where
-- columns may have other numbers.
CREATE FUNCTION outbox_internal.know_table()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.known_columns := outbox_internal.columns_of(NEW.relation);
    NEW.known_members := ARRAY(SELECT outbox_internal.captured_tree(NEW.relation));
    RETURN NEW;
END
$$;

CREATE TRIGGER know_table BEFORE INSERT ON outbox.captured
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.know_table();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER know_table;
COMMENT ON TRIGGER know_table ON outbox.captured IS 'records the columns and members of the table';

-- Returns the condition as SQL over the columns of the table; NULL if all rows are captured.
CREATE FUNCTION outbox.capture_condition("table" regclass)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- The condition of the delete trigger is about OLD, which pg_get_expr() takes for the table.
    -- The owner may have replaced this trigger by another with rows that pg_get_expr() does not
    -- know.
    SELECT pg_get_expr(t.tgqual, t.tgrelid)
      FROM pg_trigger AS t
     WHERE t.tgrelid = "table" AND t.tgname = '00_outbox_capture_delete'
       AND t.tgfoid = 'outbox.capture_row'::regproc AND t.tgtype = 9; -- AFTER DELETE, FOR EACH ROW
END;

-- Returns pg_trigger.tgenabled for a value of captured.fire.
CREATE FUNCTION outbox_internal.trigger_state(fire text)
RETURNS "char"
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE fire WHEN 'replica' THEN 'R' WHEN 'always' THEN 'A' ELSE 'O' END::"char";
END;

-- ---------------------------------------------------------------------------------------------
-- Tables that are altered or dropped
-- ---------------------------------------------------------------------------------------------

-- Returns the present names of columns. Names of dropped columns stay, so that they are not taken
-- for others.
CREATE FUNCTION outbox_internal.follow_names(names name[], before name[], now name[])
RETURNS name[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(coalesce(now[array_position(before, n.name)], n.name) ORDER BY n.place), '{}')
      FROM unnest(names) WITH ORDINALITY AS n(name, place);
END;

-- Follows renamed and dropped columns of a captured table.
CREATE FUNCTION outbox_internal.follow_columns(captured regclass)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.captured AS c
       SET aggregate_id = outbox_internal.follow_names(c.aggregate_id, c.known_columns, t.now),
           row_key = outbox_internal.follow_names(c.row_key, c.known_columns, t.now),
           version = (outbox_internal.follow_names(ARRAY[c.version], c.known_columns, t.now))[1],
           topic_column = (outbox_internal.follow_names(ARRAY[c.topic_column], c.known_columns, t.now))[1],
           ordering_key = outbox_internal.follow_names(c.ordering_key, c.known_columns, t.now),
           headers = (SELECT jsonb_object_agg(h.key, (outbox_internal.follow_names(ARRAY[h.value::name], c.known_columns, t.now))[1])
                        FROM jsonb_each_text(c.headers) AS h),
           -- A dropped column is removed from the list. An excluded column stays excluded if it is
           -- added again.
           columns = outbox_internal.follow_names(CASE WHEN c.columns IS NOT NULL THEN
                                             array(SELECT n.name FROM unnest(c.columns) WITH ORDINALITY AS n(name, place)
                                                    WHERE n.name <> ALL (t.gone) ORDER BY n.place) END, c.known_columns, t.now),
           excluded = outbox_internal.follow_names(c.excluded, c.known_columns, t.now),
           known_columns = t.now
      FROM (SELECT o.relation, n.now,
                   array(SELECT b.name FROM unnest(o.known_columns) WITH ORDINALITY AS b(name, number)
                          WHERE b.name IS NOT NULL AND n.now[b.number] IS NULL) AS gone
              FROM outbox.captured AS o
             CROSS JOIN LATERAL outbox_internal.columns_of(o.relation) AS n(now)
             WHERE o.relation = captured) AS t
     WHERE t.relation = c.relation AND t.now <> c.known_columns;
END;

-- Returns whether a table has its triggers; not yet while a dump is restored. They are the three
-- row triggers of outbox_internal.add_capture_triggers(): AFTER INSERT, UPDATE, DELETE. On a shard
-- of Citus their names end with its number.
CREATE FUNCTION outbox_internal.has_capture_triggers("table" regclass)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(*) = 3
      FROM pg_trigger AS t
     WHERE t.tgrelid = "table" AND t.tgfoid = 'outbox.capture_row'::regproc
       AND (regexp_replace(t.tgname, '_[0-9]+$', ''), t.tgtype)
           IN (('00_outbox_capture_insert', 5), ('00_outbox_capture_update', 17), ('00_outbox_capture_delete', 9));
END;

-- Returns whether a table is a shard of Citus, by the names of its triggers. The catalogs of Citus do
-- not know a shard yet while it is made.
CREATE FUNCTION outbox_internal.is_captured_shard("table" regclass)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM pg_trigger AS t
                    WHERE t.tgrelid = "table" AND t.tgfoid = 'outbox.capture_row'::regproc
                      AND t.tgname ~ '^00_outbox_capture_[a-z]+_[0-9]+$');
END;
