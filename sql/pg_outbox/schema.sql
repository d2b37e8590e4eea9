-- PUBLIC has no rights here: a schema grants nothing by default, and grants.sql revokes EXECUTE.
COMMENT ON SCHEMA outbox IS 'pg_outbox: events committed with the data, delivered from inside the database';

-- For objects that people and programs do not use directly. Only this script creates the schema. If
-- it exists already, the script fails, because its objects would run with the rights of the
-- extension.
CREATE SCHEMA outbox_internal;
COMMENT ON SCHEMA outbox_internal IS 'pg_outbox: functions that its own functions, views and workers call';
