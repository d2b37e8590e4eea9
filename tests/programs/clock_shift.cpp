// Shifts the time of day of the processes that preload it, and of their children. Monotonic time stays as it is.
// The file that OUTBOX_CLOCK_SHIFT names has the shift in seconds, as an int64, and may change at any time.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

const volatile std::int64_t* shift = nullptr;

__attribute__((constructor)) void find_shift() {
    const char* name = std::getenv("OUTBOX_CLOCK_SHIFT");
    const int file = name != nullptr ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void* memory = mmap(nullptr, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory != MAP_FAILED)
        shift = static_cast<const volatile std::int64_t*>(memory);
}

bool is_time_of_day(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
    const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
    if (result == 0 && shift != nullptr && is_time_of_day(clock))
        time->tv_sec += *shift;
    return result;
}

extern "C" int gettimeofday(timeval* time, void*) noexcept {
    timespec now{};
    const int result = clock_gettime(CLOCK_REALTIME, &now);
    *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return result;
}

extern "C" time_t time(time_t* to) noexcept {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    if (to != nullptr)
        *to = now.tv_sec;
    return now.tv_sec;
}
