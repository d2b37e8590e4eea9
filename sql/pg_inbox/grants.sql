-- Last: whatever came before is for nobody but its owner. docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA inbox FROM PUBLIC;

-- Who may read statistics of the server may read ours.
GRANT USAGE ON SCHEMA inbox TO pg_monitor;
GRANT SELECT ON inbox.status, inbox.waiting_keys TO pg_monitor;
