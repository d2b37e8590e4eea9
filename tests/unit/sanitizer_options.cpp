// How sanitizers behave in the unit tests, so that a run by hand is like one by CTest. The runtimes
// look these functions up by name; without a sanitizer nobody calls them.

#define FOR_THE_RUNTIME extern "C" __attribute__((visibility("default"), used)) const char*

FOR_THE_RUNTIME __asan_default_options();
FOR_THE_RUNTIME __ubsan_default_options();
FOR_THE_RUNTIME __tsan_default_options();
FOR_THE_RUNTIME __tsan_default_suppressions();

// Running out of memory is a case that is tested: malloc() must return then.
const char* __asan_default_options() {
    return "allocator_may_return_null=1:detect_stack_use_after_return=1:strict_string_checks=1";
}

// A report is a failure, not a line in the output.
const char* __ubsan_default_options() {
    return "halt_on_error=1:print_stacktrace=1";
}

const char* __tsan_default_options() {
    return "allocator_may_return_null=1:halt_on_error=1";
}

// libcurl may take a socket out of the epoll set after it has closed it; the peer of a test, a thread
// of the same process, may have the number by then. Taking out what is not in has no effect.
//
// gRPC is not instrumented, as tests/thread_suppressions says: what orders its threads is not seen.
const char* __tsan_default_suppressions() {
    return "race:outbox::CurlLoop::on_socket\n"
           "called_from_lib:libgrpc.so\n"
           "called_from_lib:libgrpc++.so\n"
           "called_from_lib:libgpr.so\n"
           "race:libabsl_\n"
           "race:grpc::internal::\n";
}
