-- A dump contains all rows, and creates triggers after them, so that those of restore.sql see none.
-- What they would have done is done afterwards, before a relay or a fetcher reads: outbox.home
-- shows that the rows come from another cluster.
CREATE TABLE outbox.home (
    system_identifier bigint NOT NULL,
    log               oid    NOT NULL,
    inserted_by       xid8   NOT NULL DEFAULT pg_current_xact_id()
);
INSERT INTO outbox.home SELECT c.system_identifier, 'outbox.event'::regclass FROM pg_control_system() AS c;
COMMENT ON TABLE outbox.home IS 'the cluster that the transactions in the log belong to';
COMMENT ON COLUMN outbox.home.system_identifier IS 'the cluster; another one after a restore, and after pg_upgrade';
COMMENT ON COLUMN outbox.home.log IS 'OID of outbox.event, which pg_upgrade keeps';
COMMENT ON COLUMN outbox.home.inserted_by IS 'transaction that wrote the row, which pg_upgrade keeps as well';

-- Returns whether the transactions in the log are of this cluster.
CREATE FUNCTION outbox_internal.is_at_home()
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT h.system_identifier = c.system_identifier FROM outbox.home AS h, pg_control_system() AS c;
END;

-- Lets one transaction at a time restore rows, because events are numbered by the cursors that
-- exist.
CREATE FUNCTION outbox_internal.begin_restore()
RETURNS void
LANGUAGE sql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_advisory_xact_lock(@{lock_class}, @{restore_lock});
END;

-- Moves the sequence of positions up to one that came with a row, unless it has passed it. The caller
-- keeps enqueues out.
CREATE FUNCTION outbox_internal.raise_position("position" bigint)
RETURNS void
LANGUAGE sql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT setval('outbox.event_position', $1) FROM outbox.event_position AS p WHERE p.last_value < $1 OR NOT p.is_called;
END;
