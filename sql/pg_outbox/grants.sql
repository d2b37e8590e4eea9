-- Last: whatever came before is for nobody but its owner. docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON TYPE outbox.new_event FROM PUBLIC;

-- Who may read statistics of the server may read ours; there is nothing of an event in them.
SELECT outbox.grant_monitor('pg_monitor');

-- Whoever adds a partition to a captured table gives it the triggers of the table, and whoever captures a table gives
-- them to it as its owner. The functions do nothing for tables that are not captured.
GRANT EXECUTE ON FUNCTION outbox.capture_row(), outbox.capture_truncate() TO PUBLIC;

-- Views that outbox.create_outbox_view() makes call it with the rights of whoever reads them. It depends on nothing
-- but its argument.
GRANT EXECUTE ON FUNCTION outbox.payload_as_jsonb(bytea) TO PUBLIC;
