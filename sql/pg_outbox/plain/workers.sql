-- Returns the relays outside the server that serve this database, and backfills. No worker of
-- pg_outbox is in this server. Views call it, for roles that may read the views and not the tables.
CREATE FUNCTION outbox.workers(
    OUT kind             text,
    OUT object           oid,
    OUT name             name,
    OUT pid              integer,
    OUT state            text,
    OUT state_since      timestamptz,
    OUT delivered        bigint,
    OUT delivered_bytes  bigint,
    OUT failures         bigint,
    OUT unsettled        bigint,
    OUT held_keys        bigint,
    OUT read_to          xid8,
    OUT oldest_unsettled timestamptz,
    OUT settled_position bigint,
    OUT latency_p50      interval,
    OUT latency_p99      interval,
    OUT last_error       text,
    OUT last_error_at    timestamptz,
    OUT throttled        bigint,
    OUT request_limit    double precision,
    OUT suspects         bigint,
    OUT lanes_down       bigint,
    OUT round_trip_p50   interval,
    OUT round_trip_p99   interval,
    OUT client_queue     bigint,
    OUT connects         bigint,
    OUT disconnects      bigint,
    OUT failing_since    timestamptz,
    OUT next_attempt_at  timestamptz,
    OUT latency_buckets  bigint[],
    OUT latency_sum      double precision)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT 'relay', s.number::oid, c.destination, NULL::integer, s.state, s.state_since, s.delivered, NULL::bigint, s.failures,
           s.unsettled, s.held_keys, s.read_to, s.oldest_unsettled, s.settled_position, s.latency_p50, s.latency_p99,
           s.last_error, s.last_error_at, s.throttled, s.request_limit, s.suspects, s.lanes_down, s.round_trip_p50,
           s.round_trip_p99, s.client_queue, s.connects, s.disconnects,
           s.failing_since, s.next_attempt_at, s.latency_buckets, s.latency_sum
      FROM outbox.relay_status AS s
      JOIN outbox.cursor AS c ON c.number = s.number
      JOIN outbox.relay AS r ON r.id = c.relay AND r.id = s.relay AND r.leased_until > clock_timestamp();
    RETURN QUERY
    SELECT 'backfill', t.id::oid, t.id::text::name, NULL::integer, 'delivering', t.updated_at, t.rows_done, NULL::bigint, NULL::bigint,
           NULL::bigint, NULL::bigint, NULL::xid8, NULL::timestamptz, NULL::bigint, NULL::interval, NULL::interval,
           t.last_error, NULL::timestamptz, NULL::bigint, NULL::double precision, NULL::bigint, NULL::bigint, NULL::interval,
           NULL::interval, NULL::bigint, NULL::bigint, NULL::bigint, NULL::timestamptz, NULL::timestamptz,
           NULL::bigint[], NULL::double precision
      FROM outbox.backfill_task AS t
     WHERE t.state = 'running' AND EXISTS (SELECT FROM outbox.relay AS r WHERE r.leased_until > clock_timestamp());
END $$;

-- Returns the background workers of pg_outbox in this database that should live and are not started
-- yet.
CREATE FUNCTION outbox.absent_workers(
    OUT kind      text,
    OUT object    oid,
    OUT name      name,
    OUT account   oid,
    OUT state     text,
    OUT waits_for text,
    OUT crashes   integer,
    OUT deaths    integer,
    OUT since     timestamptz,
    OUT next_try  timestamptz)
RETURNS SETOF record
LANGUAGE sql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT NULL::text, NULL::oid, NULL::name, NULL::oid, NULL::text, NULL::text, NULL::integer, NULL::integer,
           NULL::timestamptz, NULL::timestamptz
     WHERE false;
END;

-- Returns the number of background workers that the server should run, other extensions included, as
-- far as this database can know. NULL: this edition has none.
CREATE FUNCTION outbox_internal.workers_needed(relays oid[])
RETURNS integer
LANGUAGE sql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT NULL::integer;
END;
