-- Keeps workers out of this database until the session ends. A partly restored log must not be
-- read, because its events are out of order. It also makes a parallel restore load one table at a
-- time, because events are numbered by the cursors that exist.
CREATE FUNCTION outbox_internal.begin_restore()
RETURNS void
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_begin_restore';

-- Moves the sequence of positions up to one that came with a row, unless it has passed it: logical
-- replication brings no sequences.
CREATE FUNCTION outbox_internal.raise_position("position" bigint)
RETURNS void
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_raise_position';

-- Rows adapt themselves when they are restored.
CREATE FUNCTION outbox_internal.is_at_home()
RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT true;
END;
COMMENT ON FUNCTION outbox_internal.is_at_home() IS 'returns whether the transactions in the log are of this cluster';
