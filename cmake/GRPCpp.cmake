# The target pg_inbox_grpc, if there is grpc++. pkg-config needs half a second for each question about
# it, and pkg_check_modules() asks twenty; this asks once.
if(NOT TARGET pg_inbox_grpc)
  find_package(PkgConfig REQUIRED)
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --cflags --libs grpc++
    OUTPUT_VARIABLE GRPCPP_FLAGS OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    separate_arguments(GRPCPP_FLAGS UNIX_COMMAND "${GRPCPP_FLAGS}")
    set(GRPCPP_LIBRARIES ${GRPCPP_FLAGS})
    list(FILTER GRPCPP_FLAGS EXCLUDE REGEX "^-(l|L|Wl,|pthread)")
    list(FILTER GRPCPP_LIBRARIES INCLUDE REGEX "^-(l|L|Wl,|pthread)")
    add_library(pg_inbox_grpc INTERFACE IMPORTED GLOBAL)
    target_compile_options(pg_inbox_grpc INTERFACE ${GRPCPP_FLAGS})
    target_link_libraries(pg_inbox_grpc INTERFACE ${GRPCPP_LIBRARIES})
  endif()
endif()
