-- Returns the events of a window as a relay reads them, in its order: with its code, its index scan
-- and its fetch of rows. It selects the events that the destination with the number `only_to` takes
-- (0 for events that are for all) of the given topics. Without `to_snapshot` the window ends with
-- the snapshot of the statement, as for a relay.
--
-- Tests compare it with outbox_internal.window_events(). If an event seems to be missing, it also
-- shows what a relay would find between two snapshots of its cursor. Like a relay, it reads whole
-- rows.
CREATE FUNCTION outbox_internal.read_window(
    from_snapshot    pg_snapshot,
    to_snapshot      pg_snapshot DEFAULT NULL,
    settled          pg_snapshot DEFAULT '1:1:',
    settled_position bigint DEFAULT 0,
    only_to          integer DEFAULT 0,
    topics           text DEFAULT '*',
    OUT xid        xid8,
    OUT "position" bigint)
RETURNS SETOF record
LANGUAGE c STABLE
AS 'MODULE_PATHNAME', 'outbox_read_window';
