# Joins the files of the SQL edition to one that psql runs in a transaction. -D VERSION, OUTPUT, FILES.
set(script "-- The SQL edition of pg_outbox ${VERSION}. Run this file as the owner of the database:
--
--     psql -d DATABASE -f pg_outbox--sql.sql
--
-- docs/editions.md says what it does and how it is removed.
\\set ON_ERROR_STOP on
BEGIN;
")
foreach(file ${FILES})
  file(READ ${file} text)
  string(APPEND script "\n${text}")
endforeach()
file(WRITE ${OUTPUT} "${script}\nCOMMIT;\n")
