-- The rule of windows. It stands here for all that deals events out in SQL, and in bgworker/relay/log_reader.cpp
-- for relays, which read heap and index without a query. tests/system/test_windows.py compares the two.
--
-- A window holds the events of the transactions that had not finished in `from_snapshot` and have finished in
-- `to_snapshot`, in order of position. A part of it lies above `after` and not above `upto`. Events up to
-- `settled_position` whose transactions had finished in `settled` do not count: they were settled before.
--
-- The caller sorts, often by lane and position at once. It gives `to_snapshot` no later than the snapshot of its
-- own statement. If it has written events itself, it uses outbox_internal.finished_by_now(): they are in progress there.
--
-- The function has no SET clause, so that the planner puts its query in place of the call. Only then a part is
-- found by the index, and columns that the caller does not use are not read.
CREATE FUNCTION outbox_internal.window_events(
    from_snapshot    pg_snapshot,
    to_snapshot      pg_snapshot,
    after            bigint DEFAULT 0,
    upto             bigint DEFAULT 9223372036854775807,
    settled          pg_snapshot DEFAULT '1:1:',
    settled_position bigint DEFAULT 0)
RETURNS TABLE (
    xid          xid8,
    "position"   bigint,
    occurred_at  timestamptz,
    topic        text,
    ordering_key text,
    bytes        integer,
    only_to      integer)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT w.xid, w.position, w.occurred_at, w.topic, w.ordering_key, w.bytes, w.only_to
      FROM (SELECT e.xid, e.position, e.occurred_at, e.topic, e.ordering_key, octet_length(e.payload) AS bytes, e.only_to
              FROM outbox.event AS e
             WHERE e.xid >= pg_snapshot_xmax(from_snapshot) AND e.xid < pg_snapshot_xmax(to_snapshot)
               AND e.position > after AND e.position <= upto
            UNION ALL
            SELECT e.xid, e.position, e.occurred_at, e.topic, e.ordering_key, octet_length(e.payload), e.only_to
              FROM pg_snapshot_xip(from_snapshot) AS late(xid)
             CROSS JOIN LATERAL (SELECT * FROM outbox.event AS e
                                  WHERE e.xid = late.xid AND e.position > after AND e.position <= upto
                                 OFFSET 0) AS e -- one by one, through the index
           ) AS w
     WHERE pg_visible_in_snapshot(w.xid, to_snapshot)
       AND NOT (w.position <= settled_position AND pg_visible_in_snapshot(w.xid, settled));
END;
COMMENT ON FUNCTION outbox_internal.window_events(pg_snapshot, pg_snapshot, bigint, bigint, pg_snapshot, bigint) IS
    'the events of a window, or of a part of it';

-- The same window as a relay reads it: its code, through the same index and the same fetch of rows. It selects
-- what the destination with the number `only_to` takes (0: what is for all) of the given topics. Without
-- `to_snapshot` the window ends with the snapshot of the statement, which is how a relay ends one.
--
-- Tests compare it with outbox_internal.window_events(). It also shows what a relay would find between two snapshots of
-- its cursor, when an event is thought to be missing. Like a relay, it reads whole rows.
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
COMMENT ON FUNCTION outbox_internal.read_window(pg_snapshot, pg_snapshot, pg_snapshot, bigint, integer, text) IS
    'the events of a window as a relay reads them, in its order';
