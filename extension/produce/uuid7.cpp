#include "extension/produce/uuid7.hpp"

#include <ctime>

namespace outbox {

// Random bytes are generated in portions, because a call costs more than a byte. Each session fills
// its own portion after the fork, so that no two sessions share one.
static void take_random(void* to, size_t size) {
    static uint8 portion[2048];
    static size_t left = 0;
    if (left < size) {
        if (!pg_strong_random(portion, sizeof portion))
            ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
                            errmsg("could not generate random values for an event id")));
        left = sizeof portion;
    }
    left -= size;
    memcpy(to, portion + left, size);
}

void make_uuid7(pg_uuid_t* id) {
    static uint64 last = 0;

    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64 milliseconds = static_cast<uint64>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
    const uint64 fraction = (static_cast<uint64>(now.tv_nsec % 1'000'000) << 12) / 1'000'000;
    uint64 time = (milliseconds << 12) | fraction;
    if (time <= last)
        time = last + 1;
    last = time;

    for (int i = 0; i < 6; i++)
        id->data[i] = static_cast<unsigned char>(time >> (52 - 8 * i));
    id->data[6] = static_cast<unsigned char>(0x70 | ((time >> 8) & 0x0f));
    id->data[7] = static_cast<unsigned char>(time);
    take_random(&id->data[8], 8);
    id->data[8] = static_cast<unsigned char>(0x80 | (id->data[8] & 0x3f));
}

}  // namespace outbox
