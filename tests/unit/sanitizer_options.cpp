// Options of the sanitizers in unit tests, so that a run by hand is like one by CTest. The runtimes
// look these functions up by name. Without a sanitizer they are not called.

#define FOR_THE_RUNTIME extern "C" __attribute__((visibility("default"), used)) const char*

FOR_THE_RUNTIME __asan_default_options();
FOR_THE_RUNTIME __ubsan_default_options();
FOR_THE_RUNTIME __tsan_default_options();
FOR_THE_RUNTIME __tsan_default_suppressions();

// Tests let memory run out, so malloc() must return then.
const char* __asan_default_options() {
    return "allocator_may_return_null=1:detect_stack_use_after_return=1:strict_string_checks=1";
}

// A report must be a failure, not only a line in the output.
const char* __ubsan_default_options() {
    return "halt_on_error=1:print_stacktrace=1";
}

const char* __tsan_default_options() {
    return "allocator_may_return_null=1:halt_on_error=1";
}

// libcurl may remove a socket from the epoll set after closing it. By then the peer of a test, a
// thread of the same process, may have a socket of that number. Removing one that is not in the set
// has no effect.
//
// gRPC is not instrumented, so TSan does not see what orders its threads (tests/thread_suppressions).
const char* __tsan_default_suppressions() {
    return "race:outbox::CurlLoop::on_socket\n"
           "called_from_lib:libgrpc.so\n"
           "called_from_lib:libgrpc++.so\n"
           "called_from_lib:libgpr.so\n"
           "race:libabsl_\n"
           "race:grpc::internal::\n";
}
