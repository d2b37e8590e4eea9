-- The figures are in shared memory and start with the worker; `delivered` and `failures` of a relay
-- start where the saved cursor has them. Latencies are those of the last minutes, from occurred_at to
-- the confirmation by the destination; `latency_buckets` counts since the start, see
-- outbox_internal.histogram().
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
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_workers';
COMMENT ON FUNCTION outbox.workers() IS 'the background workers of pg_outbox in this database';

-- Returns the background workers of pg_outbox in this database that should live and are not started
-- yet. States:
--   held back   it has crashed twice or more in a row, and the server with it
--   failing     it ends with an error again and again
--   waiting     there is no room: the server, its role or its database has as many workers as allowed
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
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_absent_workers';

-- Returns the number of background workers that the server should run, other extensions included, as
-- far as this database can know. `relays` are servers of destinations that should have a relay. NULL
-- if pg_outbox is not preloaded.
CREATE FUNCTION outbox_internal.workers_needed(relays oid[])
RETURNS integer
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_workers_needed';
