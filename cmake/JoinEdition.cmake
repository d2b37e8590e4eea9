# Joins the files of the SQL edition. -D VERSION, OUTPUT (a folder), FILES, DUMP (files for extensions only):
#
#   pg_outbox--sql.sql                 for psql, in one transaction
#   pg_tle/pg_outbox_sql.sql           the call that installs it as a trusted-language extension
#   dbdev/pg_outbox_sql/               the same as a package for database.dev
set(script "")
foreach(file ${FILES})
  file(READ ${file} text)
  string(APPEND script "\n${text}")
endforeach()
set(dump "")
foreach(file ${DUMP})
  file(READ ${file} text)
  string(APPEND dump "\n${text}")
endforeach()

file(WRITE ${OUTPUT}/pg_outbox--sql.sql "-- The SQL edition of pg_outbox ${VERSION}. Run this file as the owner of the database:
--
--     psql -d DATABASE -f pg_outbox--sql.sql
--
-- docs/editions.md says what it does and how it is removed.
\\set ON_ERROR_STOP on
BEGIN;
${script}
COMMIT;
")

set(comment "Events committed with the data, delivered by outbox-relay; without a library in the server")
file(WRITE ${OUTPUT}/pg_tle/pg_outbox_sql.sql "-- Installs the SQL edition of pg_outbox ${VERSION} as a trusted-language extension, where pg_tle is there.
-- CREATE EXTENSION pg_outbox_sql then creates it.
SELECT pgtle.install_extension('pg_outbox_sql', '${VERSION}', '${comment}', $_pg_outbox_$
${script}${dump}
$_pg_outbox_$);
")

set(package ${OUTPUT}/dbdev/pg_outbox_sql)
file(WRITE ${package}/pg_outbox_sql.control "comment = '${comment}'
default_version = '${VERSION}'
relocatable = false
superuser = false
")
file(WRITE ${package}/pg_outbox_sql--${VERSION}.sql "${script}${dump}")
file(WRITE ${package}/README.md "# pg_outbox_sql

${comment}. See docs/editions.md of pg_outbox.
")
