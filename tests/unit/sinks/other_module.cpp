// A module of a sink as another build makes it: with the entries of before they carried a version, and
// those of some other one. Entering it would be a crash.
#include <cstdlib>

#define ENTRY(name)                                                             \
    extern "C" __attribute__((visibility("default"))) void* name(const void*) { \
        std::abort();                                                           \
    }

ENTRY(outbox_create_sink)
ENTRY(outbox_create_check)
ENTRY(outbox_create_sink_000000000000)
ENTRY(outbox_create_check_000000000000)
