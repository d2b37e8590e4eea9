# Makes a C++ file of the script of the SQL edition. -D VERSION, OUTPUT, FILES.
set(source "#include \"edition_script.hpp\"\n\nnamespace outboxctl {\n\nstatic const char text[] =\n")
foreach(file ${FILES})
  file(READ ${file} text)
  string(APPEND source "R\"pg_outbox(${text})pg_outbox\"\n")
endforeach()
string(APPEND source ";\n\nconst char* const edition_version = \"${VERSION}\";
const char* const edition_script = text;

}  // namespace outboxctl
")
file(WRITE ${OUTPUT} "${source}")
