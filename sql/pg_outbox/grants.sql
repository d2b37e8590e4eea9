-- Last: whatever came before is for nobody but its owner. docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON TYPE outbox.new_event FROM PUBLIC;
GRANT USAGE ON TYPE outbox.new_event TO PUBLIC; -- naming it gives no right to do anything with it
