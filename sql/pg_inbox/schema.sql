COMMENT ON SCHEMA inbox IS 'pg_inbox: messages applied exactly once';
