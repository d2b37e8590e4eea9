// A limit for lines of the server log that any role can cause: max_lines within ten minutes.
#pragma once

#include "extension/base/steady_time.hpp"

namespace outbox {

class LogQuota {
  public:
    static constexpr int max_lines = 32;

    // Returns whether another line may be written, and counts it.
    bool take() noexcept {
        if (!is_running()) {
            until_ = steady_now() + seconds(600);
            used_ = 0;
        }
        return used_++ < max_lines;
    }
    // Lines are still counted.
    bool is_running() const noexcept { return steady_now() < until_; }

  private:
    Micros until_ = 0;
    int used_ = 0;
};

}  // namespace outbox
