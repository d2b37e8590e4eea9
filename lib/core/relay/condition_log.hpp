// Decides when the condition of a destination is worth a line in the server log: once it has
// changed and stayed changed for a moment, and at most every ten seconds. A destination that comes
// and goes has few lines, which count the changes in between.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/clock.hpp"

namespace outbox {

struct Condition {
    enum class Kind { works, throttled, partly, failing };
    Kind kind = Kind::works;
    std::string reason{};  // empty while it works
};

class ConditionLog {
  public:
    static constexpr Micros settles_after = seconds(1);
    static constexpr Micros pause = seconds(10);

    // Returns true if a line about this condition is due now.
    bool observe(Micros now, Condition::Kind kind, std::string_view reason);
    // Latest time for the next observe(), or `never` if nothing is due before the next change.
    Micros deadline() const noexcept;
    // Changes since the line before the last one, including the change of the last one.
    std::uint64_t changes() const noexcept { return changes_shown_; }

  private:
    struct Seen {
        Condition::Kind kind = Condition::Kind::works;
        std::string reason{};
        bool operator==(const Seen&) const = default;
    };
    static std::string gist_of(std::string_view reason);

    Seen shown_;  // in the last line
    Seen current_;
    Micros since_ = 0;
    Micros line_at_ = 0;
    bool any_line_ = false;
    std::uint64_t changes_ = 0;
    std::uint64_t changes_shown_ = 0;
};

// Limits lines about single events: a few at once, then one at intervals.
class LineBudget {
  public:
    static constexpr unsigned at_once = 2;
    static constexpr Micros pause = seconds(30);

    // Returns true if this line may be logged. left_out() is the number of lines suppressed before
    // it.
    bool take(Micros now) noexcept;
    std::uint64_t left_out() const noexcept { return left_out_shown_; }

  private:
    unsigned left_ = at_once;
    Micros refilled_at_ = 0;
    std::uint64_t left_out_ = 0;
    std::uint64_t left_out_shown_ = 0;
};

}  // namespace outbox
