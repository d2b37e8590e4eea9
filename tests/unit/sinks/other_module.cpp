// A sink module of another build. It exports entries without a version, as old builds did, and
// entries of another version. Calling one of them would crash.
#include <cstdlib>

#define ENTRY(name)                                                             \
    extern "C" __attribute__((visibility("default"))) void* name(const void*) { \
        std::abort();                                                           \
    }

ENTRY(outbox_create_sink)
ENTRY(outbox_create_check)
ENTRY(outbox_create_sink_000000000000)
ENTRY(outbox_create_check_000000000000)
