#include "progress.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace outboxctl {

static constexpr int bar_width = 30;
static constexpr auto between_counts = std::chrono::milliseconds(500);

std::string bar_of(double done, double all) {
    const double share = all > 0 ? done / all : 1;
    const auto full = static_cast<std::size_t>(share * bar_width);
    char percent[16];
    std::snprintf(percent, sizeof percent, "%5.1f %%", share * 100);
    return '[' + std::string(full, '#') + std::string(bar_width - full, ' ') + "] " + percent;
}

Progress::Progress(bool json) : in_place_(isatty(STDOUT_FILENO) != 0 && !json) {}

Progress::~Progress() {
    if (in_place_)
        std::printf("\n");
}

void Progress::show(const std::string& line) {
    if (in_place_)
        std::printf("\r\033[K%s", line.c_str());
    else if (line != shown_)
        std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    shown_ = line;
}

void Progress::pause() {
    std::this_thread::sleep_for(between_counts);
}

}  // namespace outboxctl
