-- Returns the number of a segment. It has no SET clause, so that it is inlined.
CREATE FUNCTION outbox_internal.segment_number(segment oid)
RETURNS smallint
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT CASE segment WHEN 'outbox.event_0'::regclass THEN 0 WHEN 'outbox.event_1'::regclass THEN 1
                        WHEN 'outbox.event_2'::regclass THEN 2 ELSE 3 END::smallint;
END;

-- The rule of windows, for all SQL code that reads the log. bgworker/relay/log_reader.cpp
-- implements it again for relays, which read heap and index without a query.
-- tests/system/test_windows.py compares the two.
--
-- A window contains the events of transactions that had not finished in `from_snapshot` and have
-- finished in `to_snapshot`, in order of position. A part of it lies above `after` and not above
-- `upto`. Events up to `settled_position` whose transactions had finished in `settled` are left
-- out, because they were settled before.
--
-- The caller sorts the events, often by lane and position at once. Its `to_snapshot` must not be
-- later than the snapshot of its own statement. If the caller has written events itself, it uses
-- outbox_internal.finished_by_now(), in which they are in progress.
--
-- The function has no SET clause, so that it is inlined. Only then the index finds a part, and
-- columns that the caller does not use are not read. `segment` and `place` say where the row is.
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
    only_to      integer,
    event_id        uuid,
    version         bigint,
    schema_version  integer,
    source_event_id uuid,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    content_type    text,
    headers         jsonb,
    payload         bytea,
    segment         smallint,
    place           tid)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT w.*
      FROM (SELECT e.xid, e.position, e.occurred_at, e.topic, e.ordering_key, octet_length(e.payload) AS bytes, e.only_to,
                   e.event_id, e.version, e.schema_version,
                   e.source_event_id, e.aggregate_type, e.aggregate_id, e.event_type, e.content_type, e.headers, e.payload,
                   outbox_internal.segment_number(e.tableoid), e.ctid
              FROM outbox.event AS e
             WHERE e.xid >= pg_snapshot_xmax(from_snapshot) AND e.xid < pg_snapshot_xmax(to_snapshot)
               AND e.position > after AND e.position <= upto
            UNION ALL
            SELECT e.xid, e.position, e.occurred_at, e.topic, e.ordering_key, octet_length(e.payload), e.only_to,
                   e.event_id, e.version, e.schema_version,
                   e.source_event_id, e.aggregate_type, e.aggregate_id, e.event_type, e.content_type, e.headers, e.payload,
                   outbox_internal.segment_number(e.tableoid), e.ctid
              FROM pg_snapshot_xip(from_snapshot) AS late(xid)
             CROSS JOIN LATERAL (SELECT e.tableoid, e.ctid, e.* FROM outbox.event AS e
                                  WHERE e.xid = late.xid AND e.position > after AND e.position <= upto
                                 OFFSET 0) AS e -- one by one, through the index
           ) AS w
     WHERE pg_visible_in_snapshot(w.xid, to_snapshot)
       AND NOT (w.position <= settled_position AND pg_visible_in_snapshot(w.xid, settled));
END;
COMMENT ON FUNCTION outbox_internal.window_events(pg_snapshot, pg_snapshot, bigint, bigint, pg_snapshot, bigint) IS
    'events of a window, or of a part of it';
