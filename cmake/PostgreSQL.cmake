# Everything about the server comes from one pg_config.
#
#   PG_CONFIG              the program; the only variable to set
#   PG_INCLUDEDIR_SERVER   headers of the server (regimes "server code" and "boundary" only)
#   PG_INCLUDEDIR          headers of libpq
#   PG_PKGLIBDIR, PG_SHAREDIR, PG_BINDIR, PG_VERSION_NUM

find_program(PG_CONFIG pg_config DOC "pg_config of the server to build for" REQUIRED)

function(pg_config_value variable option)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env LC_MESSAGES=C ${PG_CONFIG} ${option}
    OUTPUT_VARIABLE value
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${variable} ${value} PARENT_SCOPE)
endfunction()

pg_config_value(PG_INCLUDEDIR_SERVER --includedir-server)
pg_config_value(PG_INCLUDEDIR --includedir)
pg_config_value(PG_LIBDIR --libdir)
pg_config_value(PG_PKGLIBDIR --pkglibdir)
pg_config_value(PG_SHAREDIR --sharedir)
pg_config_value(PG_BINDIR --bindir)
pg_config_value(PG_VERSION --version)

if(NOT EXISTS ${PG_INCLUDEDIR_SERVER}/postgres.h)
  message(FATAL_ERROR "no server headers in ${PG_INCLUDEDIR_SERVER}: install postgresql-server-dev")
endif()
file(STRINGS ${PG_INCLUDEDIR_SERVER}/pg_config.h version_line REGEX "#define PG_VERSION_NUM ")
string(REGEX REPLACE "[^0-9]" "" PG_VERSION_NUM "${version_line}")
if(PG_VERSION_NUM LESS 150000 OR PG_VERSION_NUM GREATER_EQUAL 190000)
  message(FATAL_ERROR "${PG_VERSION} is not supported; 15 to 18 are")
endif()
message(STATUS "Building for ${PG_VERSION}")

# The server's headers are somebody else's: as system headers their warnings stay quiet.
add_library(pg_server_headers INTERFACE)
target_include_directories(pg_server_headers SYSTEM INTERFACE ${PG_INCLUDEDIR_SERVER})

add_library(pg_libpq INTERFACE)
target_include_directories(pg_libpq SYSTEM INTERFACE ${PG_INCLUDEDIR})
target_link_directories(pg_libpq INTERFACE ${PG_LIBDIR})
target_link_libraries(pg_libpq INTERFACE pq)

# A module for the server that exports the symbols of its map and no other.
function(add_pg_module name exports)
  add_library(${name} MODULE)
  target_sources(${name} PRIVATE ${ARGN})
  set_target_properties(${name} PROPERTIES PREFIX "" LINK_DEPENDS ${exports})
  target_link_options(${name} PRIVATE -Wl,--version-script=${exports} -Wl,--as-needed)
  target_link_libraries(${name} PRIVATE outbox_options)
  install(TARGETS ${name} LIBRARY DESTINATION ${PG_PKGLIBDIR})
endfunction()
