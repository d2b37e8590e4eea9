-- Makes workers of pg_outbox look when the transaction commits, if this server has loaded it: for
-- 'messages' the processors of this database, for 'subscriptions' its keeper as well.
--
-- pg_inbox is plain SQL and cannot declare a function of that library, and the database may not
-- have the extension pg_outbox. The library sees a setting in every database
-- (extension/base/settings.cpp); where it is not loaded, the setting has no effect. The function
-- has no search_path of its own, so that it is inlined.
CREATE FUNCTION inbox_internal.wake(what text)
RETURNS text
LANGUAGE sql VOLATILE
RETURN pg_catalog.set_config('inbox.wake', what, true);
