-- Restoring a dump. Rows that come by COPY or INSERT, and not from outbox.enqueue() or a relay,
-- refer to transactions of another database, usually of another cluster. Enqueues do not pass
-- through this code.
--
-- Only one fact about those transactions matters: which of the restored cursors had seen them
-- finish. Snapshots of one cluster are nested: a transaction that had finished in one has finished
-- in every later one. So the snapshots of the restored cursors are numbered in their order, from 4
-- on. A transaction gets the number of the last snapshot in which it had not finished, or 3. These
-- numbers are xids older than any xid that this cluster gives to a transaction that enqueues,
-- because initdb alone uses more. They have the order of the old xids, so no other code needs to
-- treat them differently.
--
-- The order in which rows arrive only affects duplicates. pg_dump writes the cursors first. Events
-- that come before the cursors, or after a relay has gone on, are delivered to all destinations. A
-- cursor that comes after events has settled nothing.

-- Returns the highest xid of events from a restored dump.
CREATE FUNCTION outbox_internal.last_restored_xid()
RETURNS xid8
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT '600'::xid8;
END;

-- ---------------------------------------------------------------------------------------------
-- Events
-- ---------------------------------------------------------------------------------------------

-- Adapts a restored event to this database.
CREATE FUNCTION outbox_internal.adopt_event()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.begin_restore();
    PERFORM outbox_internal.raise_position(NEW.position);
    SELECT CASE
             WHEN bool_and(pg_snapshot_xmax(c.done) <= outbox_internal.last_restored_xid())
             THEN greatest('3'::xid8, -- the last snapshot in which it had not finished
                           (array_agg(pg_snapshot_xmax(c.done) ORDER BY pg_snapshot_xmax(c.done) DESC)
                               FILTER (WHERE NOT pg_visible_in_snapshot(NEW.xid, c.dumped_done)))[1],
                           (array_agg(pg_snapshot_xmax(c.upto) ORDER BY pg_snapshot_xmax(c.upto) DESC)
                               FILTER (WHERE NOT pg_visible_in_snapshot(NEW.xid, c.dumped_upto)))[1])
             ELSE pg_current_xact_id()
           END
      INTO NEW.xid
      FROM outbox.cursor AS c;
    RETURN NEW;
END
$$;

DO $$
BEGIN
    FOR number IN 0..3 LOOP
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER adopt_event BEFORE INSERT ON outbox.event_%1$s
                 FOR EACH ROW WHEN (NEW.xid <> pg_current_xact_id()) EXECUTE FUNCTION outbox_internal.adopt_event();
             ALTER TABLE outbox.event_%1$s ENABLE ALWAYS TRIGGER adopt_event;
             COMMENT ON TRIGGER adopt_event ON outbox.event_%1$s IS ''adapts a restored event to this database''',
            number);
    END LOOP;
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Cursors
-- ---------------------------------------------------------------------------------------------

-- A restored cursor replaces one that a relay has created since CREATE SERVER.
CREATE FUNCTION outbox_internal.adopt_cursor()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this_system CONSTANT bigint := system_identifier FROM pg_control_system();
BEGIN
    IF NEW.inserted_by = pg_current_xact_id() AND NEW.system_identifier = this_system THEN
        RETURN NEW; -- inserted by this database
    END IF;

    PERFORM outbox_internal.begin_restore();
    WITH replaced AS (
        DELETE FROM outbox.cursor AS c WHERE c.destination = NEW.destination RETURNING c.lease
    )
    SELECT greatest(NEW.lease, max(r.lease)) + 1 INTO NEW.lease FROM replaced AS r;
    NEW.server := coalesce((SELECT d.server FROM outbox.destination AS d WHERE d.name = NEW.destination), 0);
    NEW.system_identifier := this_system;
    NEW.inserted_by := pg_current_xact_id();
    NEW.relay := NULL;
    NEW.relay_locks := false;

    -- Events that were numbered without this cursor do not show what it had settled, and numbers in
    -- use must not change.
    IF NOT EXISTS (SELECT FROM outbox.event AS e WHERE e.xid <= outbox_internal.last_restored_xid()) THEN
        NEW.dumped_done := NEW.done;
        NEW.dumped_upto := NEW.upto;
    ELSE
        NEW.dumped_done := NULL;
        NEW.dumped_upto := NULL;
    END IF;
    NEW.done := '1:1:'; -- nothing is settled, unless number_cursors() changes it
    NEW.upto := NULL;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION outbox_internal.adopt_cursor() IS 'adapts a restored cursor to this database';

CREATE TRIGGER adopt_cursor BEFORE INSERT ON outbox.cursor
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.adopt_cursor();
ALTER TABLE outbox.cursor ENABLE ALWAYS TRIGGER adopt_cursor;
COMMENT ON TRIGGER adopt_cursor ON outbox.cursor IS 'adapts a restored cursor to this database';

-- Of two snapshots with the same xmax, the later one has fewer transactions in progress.
CREATE FUNCTION outbox_internal.number_cursors()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH restored AS (
        SELECT c.destination, c.dumped_done, c.dumped_upto
          FROM outbox.cursor AS c
         WHERE c.dumped_done IS NOT NULL AND pg_snapshot_xmax(c.done) <= outbox_internal.last_restored_xid()
    ), numbered AS (
        SELECT s.destination, s.is_upto,
               least(3 + row_number() OVER (ORDER BY pg_snapshot_xmax(s.snapshot), s.in_progress DESC),
                     outbox_internal.last_restored_xid()::text::bigint) AS number
          FROM (SELECT r.destination, v.is_upto, v.snapshot,
                       (SELECT count(*) FROM pg_snapshot_xip(v.snapshot)) AS in_progress
                  FROM restored AS r
                 CROSS JOIN LATERAL (VALUES (false, r.dumped_done), (true, r.dumped_upto)) AS v(is_upto, snapshot)
                 WHERE v.snapshot IS NOT NULL) AS s
    )
    UPDATE outbox.cursor AS c
       SET done = (SELECT format('%1$s:%1$s:', n.number)::pg_snapshot
                     FROM numbered AS n WHERE n.destination = c.destination AND NOT n.is_upto),
           upto = (SELECT format('%1$s:%1$s:', n.number)::pg_snapshot
                     FROM numbered AS n WHERE n.destination = c.destination AND n.is_upto)
      FROM restored AS r
     WHERE c.destination = r.destination;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION outbox_internal.number_cursors() IS 'numbers the snapshots of restored cursors';

CREATE TRIGGER number_cursors AFTER INSERT ON outbox.cursor
    FOR EACH ROW WHEN (NEW.dumped_done IS NOT NULL) EXECUTE FUNCTION outbox_internal.number_cursors();
ALTER TABLE outbox.cursor ENABLE ALWAYS TRIGGER number_cursors;
COMMENT ON TRIGGER number_cursors ON outbox.cursor IS 'numbers the snapshots of restored cursors';
