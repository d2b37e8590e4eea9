-- Nothing here is for PUBLIC: a schema grants nothing by default, and grants.sql takes EXECUTE away.
COMMENT ON SCHEMA outbox IS 'pg_outbox: events committed with the data, delivered from inside the database';
