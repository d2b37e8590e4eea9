-- Has the workers of pg_outbox look when the transaction commits, if this server has it loaded: 'messages' the
-- processors of this database, 'subscriptions' its keeper as well.
--
-- pg_inbox is plain SQL and cannot declare a function of that library, and its database need not have the extension
-- pg_outbox. A setting is what the library can hear of in every database (extension/settings.cpp); where it is
-- not loaded, nobody reads it. Without a search_path of its own the function is inlined.
CREATE FUNCTION inbox_internal.wake(what text)
RETURNS text
LANGUAGE sql VOLATILE
RETURN pg_catalog.set_config('inbox.wake', what, true);
COMMENT ON FUNCTION inbox_internal.wake(text) IS 'has workers in the server look at commit';
