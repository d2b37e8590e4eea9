-- This comes last: all functions so far are for their owner only. docs/security.md says what to
-- grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA inbox, inbox_internal FROM PUBLIC;

-- Roles that may read statistics of the server may read those of pg_inbox.
SELECT inbox.grant_monitor('pg_monitor');
