-- Last: whatever came before is for nobody but its owner. docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON TYPE outbox.new_event FROM PUBLIC;

-- Who may read statistics of the server may read ours; there is nothing of an event in them.
SELECT outbox.grant_monitor('pg_monitor');

-- Whoever adds a partition to a captured table gives it the triggers of the table. The function does
-- nothing for tables that are not captured.
GRANT EXECUTE ON FUNCTION outbox.capture_row() TO PUBLIC;
