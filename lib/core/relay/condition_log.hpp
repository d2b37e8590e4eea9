// When the condition of a destination is worth a line in the server log: once it has changed and
// stayed changed for a moment, and not more often than every ten seconds. A destination that comes
// and goes has few lines, which count what happened in between.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/clock.hpp"

namespace outbox {

struct Condition {
    enum class Kind { works, throttled, partly, failing };
    Kind kind = Kind::works;
    std::string reason{};  // empty when it works
};

class ConditionLog {
  public:
    static constexpr Micros settles_after = seconds(1);
    static constexpr Micros pause = seconds(10);

    // True: now is the time for a line about this condition.
    bool observe(Micros now, Condition::Kind kind, std::string_view reason);
    // When to observe again at the latest; `never`: when something changes.
    Micros deadline() const noexcept;
    // Changes since the line before the last one, that one's included.
    std::uint64_t changes() const noexcept { return changes_shown_; }

  private:
    struct Seen {
        Condition::Kind kind = Condition::Kind::works;
        std::string reason{};
        bool operator==(const Seen&) const = default;
    };
    static std::string gist_of(std::string_view reason);

    Seen shown_;  // by the last line
    Seen current_;
    Micros since_ = 0;
    Micros line_at_ = 0;
    bool any_line_ = false;
    std::uint64_t changes_ = 0;
    std::uint64_t changes_shown_ = 0;
};

// Lines about single events: a few at once, then one in a while.
class LineBudget {
  public:
    static constexpr unsigned at_once = 2;
    static constexpr Micros pause = seconds(30);

    // True: this one may be logged; left_out() is how many were not before it.
    bool take(Micros now) noexcept;
    std::uint64_t left_out() const noexcept { return left_out_shown_; }

  private:
    unsigned left_ = at_once;
    Micros refilled_at_ = 0;
    std::uint64_t left_out_ = 0;
    std::uint64_t left_out_shown_ = 0;
};

}  // namespace outbox
