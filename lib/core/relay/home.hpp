// The part that all homes of a relay share (core/relay/relay.hpp). A wish that writes becomes a call
// to the database, and the answer goes back to the relay. Operators get notices. The worker inside the server carries calls by SPI, and outbox-relay by libpq. Reading the
// log, waiting, and beginning again are theirs.
//
// A home carries one call at a time:
//
//   call()      makes the call of a wish; the state of the relay that it describes must not change
//               until its answer
//   answered()  takes the rows of a transaction that has committed, whose outcome is ok
//   busy()      the outcome is busy
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/relay/calls.hpp"
#include "core/relay/relay.hpp"
#include "core/result.hpp"

namespace outbox {

// One line for the server log, or that of outbox-relay. The text goes on after the name of the
// destination: "works again".
struct Notice {
    bool is_warning = false;
    std::string text{};
    std::string detail{};
    std::string hint{};
};

class Home {
  public:
    // Pause before expressions that could not be evaluated are tried again. A function or right that is
    // missing may be added later, and the relay is not told.
    static constexpr Micros look_again = seconds(10);

    Home(Relay& relay, const Clock& clock, const Uuid& token)
        : relay_(relay), clock_(clock), token_(token) {}

    // The relay has started with a new sink: the answer to calls::begin(). Afterwards the home calls
    // relay.follow_operator().
    void begun(calls::Begun&& begun);
    // The answer to calls::follow(). Likewise.
    void followed(calls::Begun&& followed);

    // `wish` is none of read and wait.
    calls::Call call(Relay::Wish wish, const calls::Held& held,
                     const calls::Evaluation& evaluation);
    // Returns why the answer cannot be used: the home starts over.
    std::optional<Error> answered(Relay::Wish wish, sql::Rows&& rows);
    void busy(Relay::Wish wish) noexcept;
    // The call failed. Returns true if fewer retries may be within its time limit.
    bool failed(Relay::Wish wish, bool took_too_long) noexcept;

    // An operator, or the destination itself, has paused it.
    bool paused() const noexcept { return paused_; }
    Micros next_retry() const noexcept { return next_retry_; }
    // Positions of events in outbox.delivery, ascending. They will be read from the log once more,
    // and are left out.
    std::vector<std::int64_t>& recorded() noexcept { return recorded_; }

    // Notices a change of the condition. Returns whether relay.reason() is that of new failures.
    bool look_at_condition();
    // The notices since the last call.
    std::vector<Notice> take_notices() { return std::exchange(notices_, {}); }
    bool has_notices() const noexcept { return !notices_.empty(); }
    // Of the destination, for notices.
    void set_identity(const std::string& identity) { identity_ = identity; }

  private:
    void take_paused();
    void take_recovered(calls::Begun&& found);
    void take_recorded(const calls::Recorded& recorded);
    void take_retries(sql::Rows&& rows);
    std::optional<Error> take_answer(sql::Rows&& rows);
    Micros later(Micros pause) const noexcept;
    std::size_t admit_retries(sql::Rows&& rows);
    void tell_refusal(const calls::Recorded::Refusal& refusal);
    void tell_duplicates(const calls::Begun& found);
    void tell_condition();

    Relay& relay_;
    const Clock& clock_;
    const Uuid token_;  // of retries in flight
    std::string identity_;
    bool paused_ = false;
    std::int32_t retries_at_once_ = calls::max_retries;  // fewer after a time-out of expressions
    Micros next_retry_ = 0;
    std::vector<std::int64_t> recorded_;
    std::vector<Notice> notices_;
    std::uint64_t failures_seen_ = 0;
    std::uint64_t failures_told_ = 0;
    LineBudget refusal_lines_, dead_letter_lines_;
};

}  // namespace outbox
