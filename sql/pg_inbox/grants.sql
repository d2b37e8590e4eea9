-- Last: whatever came before is for nobody but its owner. docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA inbox, inbox_internal FROM PUBLIC;

-- Who may read statistics of the server may read ours.
SELECT inbox.grant_monitor('pg_monitor');
