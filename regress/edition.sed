# Statements of the extension become their twins of the SQL edition, in tests and expected results.
# run.sh puts its directory in place of @directory@.

s|^CREATE EXTENSION pg_outbox;$|\\setenv PGDATABASE :DBNAME\n\\! "$INSTALL_EDITION"|
s#^\( \+\|setup \+{ \)CREATE EXTENSION pg_outbox;#\1COPY (SELECT) TO PROGRAM '@directory@/install pg_isolation_regress';#
s/^DROP EXTENSION pg_outbox CASCADE;$/DROP SCHEMA outbox, outbox_internal CASCADE;/
s/^\(teardown { \| .* \)DROP EXTENSION pg_outbox\( CASCADE\)\?;/\1DROP SCHEMA outbox, outbox_internal CASCADE;/

# Nothing guards the SQL edition.
/^\([a-z0-9_]\+: \)\?WARNING:  dropped extension "pg_outbox"/d
/^DETAIL:  no destination: events of the log\|^DETAIL:  .* dead letters\.$/d

s/^SET outbox.\([a-z_]*\) = \('.*'\);$/INSERT INTO outbox.setting VALUES ('\1', \2);/
s/^RESET outbox.[a-z_]*;$/DELETE FROM outbox.setting;/

/CREATE SERVER [a-z]\+ FOREIGN DATA WRAPPER pg_outbox OPTIONS/ {
    s/\b\([a-z_]\+\) \('[^']*'\)/'\1', \2/g
    s/CREATE SERVER \([a-z]\+\) FOREIGN DATA WRAPPER pg_outbox OPTIONS (\(.*\));/INSERT INTO outbox.destination_config VALUES ('\1', jsonb_build_object(\2));/
}
s/ALTER SERVER \([a-z]\+\) RENAME TO \([a-z]\+\);/UPDATE outbox.destination_config SET name = '\2' WHERE name = '\1';/
s/ALTER SERVER \([a-z]\+\) OPTIONS (SET url \('[^']*'\), DROP \([a-z]\+\));/UPDATE outbox.destination_config SET options = options - '\3' || jsonb_build_object('url', \2) WHERE name = '\1';/
s/DROP SERVER \([a-z]\+\);/DELETE FROM outbox.destination_config WHERE name = '\1';/
s/^GRANT USAGE ON FOREIGN SERVER \([a-z]\+\) TO \([a-z_]\+\);/INSERT INTO outbox.fetcher VALUES ('\2', '\1');/
# There the owner of the table must be who adopts it.
s/^ALTER TABLE app_outbox OWNER TO regress_app;$/GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER ON app_outbox TO regress_app WITH GRANT OPTION;/
# Calls leave out the last argument.
s/^\(GRANT EXECUTE ON FUNCTION outbox.enqueue(.* timestamptz\)) TO/\1, outbox_internal.caller) TO/
s/^HINT:  CREATE SERVER \.\.\. .* (url 'pull:')\.$/HINT:  INSERT INTO outbox.destination_config VALUES (..., '{"url": "pull:"}');/
s/^HINT:  CREATE SERVER \.\.\. FOREIGN DATA WRAPPER pg_outbox with the url/HINT:  INSERT INTO outbox.destination_config with the url/
s/^HINT:  GRANT USAGE ON FOREIGN SERVER \([a-z]\+\) TO \([a-z_]\+\);/HINT:  SELECT outbox.grant_fetch('\2', '\1');/
