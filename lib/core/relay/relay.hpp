// The relay of one destination, without I/O. It reads the log window by window, hands the events to
// a sink through the pipeline, and knows how far it has come.
//
// It has two homes: a background worker of the server, which reaches the log by heap access and the
// tables by SPI, and a program outside, which uses SQL functions. A home asks next(), does what the
// relay wants, tells it the result, and asks again:
//
//   Wish::read          Unless in_window(): take a snapshot and look for transactions that finished
//                       since frontier(); then window_found() or nothing_found(). In a window: fill
//                       block(), then block_read(). Both may happen in one transaction.
//   Wish::take_retries  If hurries(): make events due that waited for what was down, then hurried().
//                       Claim rows of outbox.delivery that are due, hand them to
//                       pipeline().admit_retries(), then retries_taken().
//   Wish::record        Write pipeline().records() to outbox.delivery, then recorded().
//   Wish::save          Write pipeline().receipts() and, if may_save_cursor(), cursor(); then saved().
//   Wish::wait          Sleep until deadline(), until the pipeline's descriptor is readable, or until
//                       a commit.
//
// The last three writes happen under the lock of the destination's row of outbox.cursor. If an
// operator has that lock, the home does not wait for it, but says cursor_is_busy().
//
// The results become part of the relay only once the home's transaction has committed. So a home
// that fails at any point may start a new relay from the saved cursor: that repeats events, as many
// as were delivered since the last save, and loses none.
//
// Not thread-safe. Functions that allocate throw std::bad_alloc; the relay is of no use afterwards.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "core/backoff.hpp"
#include "core/clock.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/relay/condition_log.hpp"
#include "core/relay/cursor.hpp"

namespace outbox {

class Relay {
  public:
    enum class Wish { read, take_retries, record, save, wait };

    struct Intervals {
        Micros poll_min = milliseconds(250);  // between looks that find nothing: first pause,
        Micros poll_max = seconds(10);        // longest pause
        Micros save = seconds(1);             // the cursor is saved at least this often
    };

    // After this many delivered events the cursor is saved, and flushed to disk. A crash repeats no
    // more of them.
    static constexpr std::uint64_t max_unsaved_events = 100'000;
    // While there is trouble all the time, it is recorded this often, and retries are taken.
    static constexpr Micros trouble_pause = milliseconds(200);
    // This many of either do not wait for the pause.
    static constexpr std::size_t many_records = 500;
    static constexpr std::size_t many_retries = 100;
    // Pause after retries that were due but could not be claimed.
    static constexpr Micros retry_pause = seconds(1);
    // Pause after an operator was found to hold the lock of the cursor.
    static constexpr Micros busy_pause = milliseconds(100);
    // While commits come so fast that a window holds several, the next look waits for more. Each
    // look takes a snapshot, and the session that wakes the relay pays for a system call.
    static constexpr Micros gather_time = milliseconds(1);

    Relay(const Clock& clock, DeliveryStats& stats, std::uint64_t seed);
    ~Relay();
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;

    // Takes effect at once: the next look is due.
    void set_intervals(const Intervals& intervals) noexcept;

    // Starts over from cursor(), which the home has set. What was in flight is given up and will be
    // sent again. The held keys are the home's to load, into pipeline().
    void start(std::unique_ptr<Sink> sink, const Pipeline::Limits& limits);
    // Ends delivery, as for a destination that cannot be used as configured.
    void stop() noexcept;
    bool started() const noexcept { return pipeline_ != nullptr; }
    // The decisions of an operator are to be followed; held keys were loaded anew.
    void follow_operator(bool paused) noexcept;

    // What is to be done next. `committed`: a commit may have added events since the last look.
    // Lets the pipeline send and receive in between.
    Wish next(bool committed);
    // When next() must be called although nothing happened.
    Micros deadline(bool committed) const noexcept;

    // Reading.
    bool in_window() const noexcept { return in_window_; }
    const Snapshot& frontier() const noexcept { return frontier_; }
    const Settled& settled_before() const noexcept { return settled_before_; }
    // `end`: the snapshot of the look. `several`: the window may have more than one event.
    void window_found(const Snapshot& end, bool several);
    void nothing_found(const Snapshot& end);
    EventBlock& block();
    // `last_position`: of the last event that was looked at, also if it is for another destination.
    void block_read(bool end_of_window, std::int64_t last_position);

    // Trouble. `next_retry`: when the next row of outbox.delivery is due, by the clock; or `never`.
    bool has_records() const noexcept;
    void recorded(Micros next_retry);
    bool hurries() const noexcept { return hurries_; }
    void hurried(bool all) noexcept { hurries_ = !all; }
    void retries_taken(std::size_t count, Micros next_retry) noexcept;

    // Saving.
    Cursor& cursor() noexcept { return cursor_; }
    const Cursor& cursor() const noexcept { return cursor_; }
    bool has_something_to_save() const noexcept;
    bool may_save_cursor() const noexcept { return !cursor_.foreign; }
    // Returns whether the home must now wait until what it saved is on disk.
    [[nodiscard]] bool saved() noexcept;

    void cursor_is_busy() noexcept { not_before_ = clock_.now() + busy_pause; }

    // Only while started().
    Pipeline& pipeline() noexcept { return *pipeline_; }
    const Pipeline& pipeline() const noexcept { return *pipeline_; }

    // What is to be said of the destination, and why.
    Condition::Kind condition() const noexcept;
    const std::string& reason() const noexcept;
    // Whether a line in the server log is due about it; condition_log() has the counts for the line.
    bool line_is_due();
    const ConditionLog& condition_log() const noexcept { return condition_log_; }

  private:
    // Where next() goes on.
    enum class Step { read, take_retries, send, record, save, wait };

    bool is_due(Micros due) const noexcept { return clock_.now() >= due; }
    Micros look_due(bool committed) const noexcept;
    Micros retry_due() const noexcept;
    Micros record_due() const noexcept;
    Micros save_due() const noexcept;
    bool flush_is_due() const noexcept;
    void send();
    void settle();

    const Clock& clock_;
    DeliveryStats& stats_;
    std::uint64_t seed_;
    std::unique_ptr<Pipeline> pipeline_;
    Step step_ = Step::read;

    // Reading. `open_windows_`: those that are not settled, by the snapshot each ends with. Reading
    // goes on from `frontier_`, the end of the last one.
    Snapshot frontier_;
    Settled settled_before_;
    std::deque<Snapshot> open_windows_;
    bool in_window_ = false;  // the last one has events that are not read yet
    EventBlock* block_ = nullptr;
    Backoff poll_;
    Micros next_look_ = 0;
    Micros gather_until_ = 0;

    // Saving.
    Cursor cursor_;
    Micros save_interval_ = 0;
    bool unsaved_ = false;
    Micros saved_at_ = 0;
    Micros not_before_ = 0;                 // of what needs the lock of the cursor
    std::uint64_t delivered_at_flush_ = 0;  // when what was saved was known to be on disk

    // Trouble.
    Micros recorded_at_ = 0;
    Micros retries_due_ = 0;
    Micros retries_taken_at_ = 0;  // 0: there were many
    bool hurries_ = false;
    ConditionLog condition_log_;
};

}  // namespace outbox
