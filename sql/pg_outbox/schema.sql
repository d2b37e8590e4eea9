-- Nothing here is for PUBLIC: a schema grants nothing by default, and grants.sql takes EXECUTE away.
COMMENT ON SCHEMA outbox IS 'pg_outbox: events committed with the data, delivered from inside the database';

-- What people and programs do not call. Only this script makes it: if there is such a schema already, the
-- script fails, for what is in it would run with the rights of the extension.
CREATE SCHEMA outbox_internal;
COMMENT ON SCHEMA outbox_internal IS 'pg_outbox: functions that its own functions, views and workers call';
