-- Cursors of destinations: how far each one has delivered. There is one row per destination, and
-- one for each endpoint that is behind (endpoint.sql). Only its relay updates it, at most every
-- outbox.cursor_flush_interval. The relay finds its row by ctid, which costs the same however many
-- dead versions a held snapshot keeps alive, and by its number, because VACUUM FULL and CLUSTER put
-- other rows at its place. The index is not unique, because a unique index would be checked against
-- all dead versions.
--
-- Here and in outbox.delivery a destination is identified by its name. Names last through dumps,
-- copies and pg_upgrade, and OIDs do not. The event triggers below follow servers that are renamed
-- or dropped.
CREATE SEQUENCE outbox.destination_number AS integer;
COMMENT ON SEQUENCE outbox.destination_number IS 'numbers of destinations';

CREATE TABLE outbox.cursor (
    destination       name        NOT NULL,
    number            integer     NOT NULL DEFAULT nextval('outbox.destination_number'),
    server            oid         NOT NULL,
    -- Before the snapshots, which have no equality: a subscriber of logical replication looks for the row that
    -- was updated column by column, and its own row differs here.
    system_identifier bigint      NOT NULL,
    done              pg_snapshot NOT NULL,
    upto              pg_snapshot,
    position          bigint      NOT NULL,
    lease             bigint      NOT NULL,
    saved_at          timestamptz NOT NULL,
    paused            boolean     NOT NULL DEFAULT false,
    detached_at       timestamptz,
    inserted_by       xid8        NOT NULL DEFAULT pg_current_xact_id(),
    dumped_done       pg_snapshot,
    dumped_upto       pg_snapshot,
    lanes             integer,
    first_batch       bigint,
    next_batch        bigint,
    relay             uuid,
    relay_locks       boolean     NOT NULL DEFAULT false,
    live_after        bigint      NOT NULL DEFAULT 0,
    published         bigint      NOT NULL DEFAULT 0,
    failures          bigint      NOT NULL DEFAULT 0,
    failing_since     timestamptz,
    resumed           bigint      NOT NULL DEFAULT 0
);
COMMENT ON TABLE outbox.cursor IS 'cursors of destinations, and of endpoints that are behind: which events they have settled';
COMMENT ON COLUMN outbox.cursor.destination IS 'name of the foreign server, default for outbox.default_destination, or <server>/<name> of an endpoint';
COMMENT ON COLUMN outbox.cursor.number IS 'number of the destination, which never changes; see outbox.event.only_to. 0 for an endpoint';
COMMENT ON COLUMN outbox.cursor.server IS 'OID of the foreign server when the relay started; 0 for outbox.default_destination and endpoints';
COMMENT ON COLUMN outbox.cursor.done IS 'events of all transactions that had finished in this snapshot are settled';
COMMENT ON COLUMN outbox.cursor.upto IS 'end of a window whose events up to position are settled as well; null if none';
COMMENT ON COLUMN outbox.cursor.position IS 'highest settled position';
COMMENT ON COLUMN outbox.cursor.system_identifier IS 'the cluster to which the transactions of the snapshots belong';
COMMENT ON COLUMN outbox.cursor.lease IS 'token of the relay that may settle; a new relay takes a new one';
COMMENT ON COLUMN outbox.cursor.saved_at IS 'when the row was written';
COMMENT ON COLUMN outbox.cursor.paused IS 'true if nothing is delivered until outbox.resume()';
COMMENT ON COLUMN outbox.cursor.detached_at IS 'time since which it does not hold the log, see outbox.on_full_log; null if it does';
COMMENT ON COLUMN outbox.cursor.inserted_by IS 'transaction that inserted the row, to detect a row restored from a dump';
COMMENT ON COLUMN outbox.cursor.dumped_done IS 'value of done in a restored dump, or null; see restore.sql';
COMMENT ON COLUMN outbox.cursor.dumped_upto IS 'value of upto in a restored dump, or null';
COMMENT ON COLUMN outbox.cursor.lanes IS 'number of lanes of a pull destination when batches were made';
-- A search for the first batch of a lane starts at first_batch, so that it skips dead rows that an
-- old snapshot keeps.
COMMENT ON COLUMN outbox.cursor.first_batch IS 'lower bound of the batch numbers of a pull destination';
COMMENT ON COLUMN outbox.cursor.next_batch IS 'number of the next batch of a pull destination';
COMMENT ON COLUMN outbox.cursor.relay IS 'relay outside the server that serves it, see outbox.relay; null if none does';
COMMENT ON COLUMN outbox.cursor.relay_locks IS 'whether the session of that relay holds the advisory lock of the destination';
COMMENT ON COLUMN outbox.cursor.live_after IS 'events up to this position are delivered again since a seek, so that their age is not a latency';
COMMENT ON COLUMN outbox.cursor.published IS 'events that the destination had confirmed when the row was written; of a pull destination, those in batches included';
COMMENT ON COLUMN outbox.cursor.failures IS 'attempts that had failed by then';
COMMENT ON COLUMN outbox.cursor.failing_since IS 'since when the destination, or some of its topics or queues, failed; null if all worked';
COMMENT ON COLUMN outbox.cursor.resumed IS 'calls of outbox.resume(), each of which ends what its relay waits for';

CREATE INDEX cursor_destination ON outbox.cursor (destination);
COMMENT ON INDEX outbox.cursor_destination IS 'finds the cursor of a destination or endpoint';

-- Returns whether a cursor has settled an event of the log. A pull destination has not settled those
-- that are in a batch as well. It has no SET clause, so that it is inlined.
CREATE FUNCTION outbox_internal.is_settled(cursor outbox.cursor, xid xid8, "position" bigint)
RETURNS boolean
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT pg_visible_in_snapshot(xid, (cursor).done)
        OR coalesce("position" <= (cursor).position AND pg_visible_in_snapshot(xid, (cursor).upto), false);
END;

-- Any role may have written the row, so the time can have any value.
CREATE FUNCTION outbox_internal.unix_micros(at timestamptz)
RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(greatest(extract(epoch FROM CASE WHEN isfinite(at) THEN least(at, clock_timestamp()) END) * 1000000, 0)::bigint, 0);
END;
COMMENT ON FUNCTION outbox_internal.unix_micros(timestamptz) IS 'a past time in microseconds since 1970; 0 for null';
