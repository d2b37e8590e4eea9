-- Last: whatever came before is for nobody but its owner. docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON TYPE outbox.new_event FROM PUBLIC;
GRANT USAGE ON TYPE outbox.new_event TO PUBLIC; -- naming it gives no right to do anything with it

-- Who may read statistics of the server may read ours; there is nothing of an event in them.
GRANT USAGE ON SCHEMA outbox TO pg_monitor;
GRANT SELECT ON outbox.status, outbox.segment, outbox.lease TO pg_monitor;
GRANT EXECUTE ON FUNCTION outbox.workers(), outbox.oldest_after(pg_snapshot),
    outbox.segment_held_by(integer), outbox.health(), outbox.metrics() TO pg_monitor;
