-- Last: whatever came before is for nobody but its owner. docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON TYPE outbox.new_event FROM PUBLIC;

-- Who may read statistics of the server may read ours; there is nothing of an event in them.
SELECT outbox.grant_monitor('pg_monitor');
