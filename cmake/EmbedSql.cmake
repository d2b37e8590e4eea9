# Makes a C++ file of install scripts. -D VERSION, OUTPUT, FILES (joined to one), UPGRADES.
function(append_literal file)
  file(READ ${file} text)
  string(REGEX REPLACE "^\\\\echo [^\n]*\n" "" text "${text}") # of a script for ALTER EXTENSION
  string(APPEND source "R\"pg_inbox(${text})pg_inbox\"\n")
  set(source "${source}" PARENT_SCOPE)
endfunction()

set(source "#include \"scripts.hpp\"\n\nnamespace inbox {\n\nstatic const UpgradeScript upgrades[] = {\n")
foreach(file ${UPGRADES})
  string(REGEX MATCH "--([^/]+)--([^/]+)\\.sql$" name "${file}")
  string(APPEND source "{\"${CMAKE_MATCH_1}\", \"${CMAKE_MATCH_2}\",\n")
  append_literal(${file})
  string(APPEND source "},\n")
endforeach()
string(APPEND source "{}};\n\nstatic const char create[] =\n")
foreach(file ${FILES})
  append_literal(${file})
endforeach()
string(APPEND source ";\n\nconst Scripts& embedded_scripts() {
    static const Scripts scripts{\"${VERSION}\", create, {upgrades, std::size(upgrades) - 1}};
    return scripts;
}

}  // namespace inbox
")
file(WRITE ${OUTPUT} "${source}")
