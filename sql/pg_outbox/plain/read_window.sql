-- Returns the events of a window that a destination selects, as a relay does.
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
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT w.xid, w.position
      FROM outbox_internal.window_events(from_snapshot, coalesce(to_snapshot, pg_current_snapshot()),
                                         settled => read_window.settled, settled_position => read_window.settled_position) AS w
     WHERE w.topic LIKE ANY (outbox_internal.topic_patterns(topics)) AND (w.only_to IS NULL OR w.only_to = read_window.only_to)
     ORDER BY w.position;
END;
