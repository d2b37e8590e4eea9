# Makes a C++ file of the script of the SQL edition, and of that which leads from one edition to the other.
# -D VERSION, OUTPUT, FILES, MIGRATION.
set(source "#include \"edition_script.hpp\"\n\nnamespace outboxctl {\n\nconst char* const edition_version = \"${VERSION}\";\n")

function(append_script name)
  string(APPEND source "\nconst char* const ${name} =\n")
  foreach(file ${ARGN})
    file(READ ${file} text)
    string(APPEND source "R\"pg_outbox(${text})pg_outbox\"\n")
  endforeach()
  set(source "${source};\n" PARENT_SCOPE)
endfunction()

append_script(edition_script ${FILES})
append_script(migration_script ${MIGRATION})
file(WRITE ${OUTPUT} "${source}\n}  // namespace outboxctl\n")
