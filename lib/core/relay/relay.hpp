// The relay of one destination, without I/O. It reads the log window by window, hands the events to
// a sink through the pipeline, and knows up to where the log is settled.
//
// It has two homes. A background worker of the server reaches the log by heap access and the tables
// by SPI; a program outside uses SQL functions. A home calls next(), does what the relay asks for,
// reports the result, and calls next() again:
//
//   Wish::recover       Only for a destination that takes events exactly once (core/transactions.hpp):
//                       apply the rows of outbox.transaction up to transactions().committed(), then
//                       call recovered(). Nothing is read before that.
//   Wish::read          If not in_window(): take a snapshot and look for transactions that finished
//                       since frontier(), then call window_found() or nothing_found(). In a window:
//                       fill block(), then call block_read(). One transaction may do both.
//   Wish::take_retries  If hurries(): make events due that waited for the end of an outage, then
//                       call hurried(). Take rows of outbox.delivery that are due, pass them to
//                       pipeline().admit_retries(), then call retries_taken().
//   Wish::pause         The destination is gone: pause it, with pipeline().gone() as the reason, then
//                       call paused().
//   Wish::note          Write the row of transactions().to_note() to outbox.transaction, wait until
//                       it is on disk, then call noted().
//   Wish::consult       The sink has a question for the database (core/endpoints.hpp): run
//                       outbox_internal.ask_endpoints() with question(), then call consulted() or,
//                       if it had no effect, consult_failed().
//   Wish::record        Call pipeline().gather_records(), write pipeline().records() to
//                       outbox.delivery, then call recorded().
//   Wish::save          Write pipeline().receipts() and, if may_save_cursor(), cursor(), and remove
//                       the rows of passed_transactions(). Then call saved().
//   Wish::wait          Sleep until deadline(), until the pipeline's descriptor is readable, or
//                       until a commit.
//
// All writes but those of Wish::read happen under the lock of the destination's row of
// outbox.cursor. If an operator holds that lock, the home does not wait for it, but calls
// cursor_is_busy().
//
// A home that does not wait for its transactions does one task at a time, and does not call next()
// before it has reported the result. Only reading may go on beside other tasks (see reading()), and
// reading and sending while a question is under way (see next_beside_question()).
//
// A home reports a result only after its transaction has committed. So a home that fails at any
// point may start a new relay from the saved cursor. That repeats the events delivered since the
// last save, and loses none.
//
// Not thread-safe. Functions that allocate throw std::bad_alloc; after that the relay must not be
// used.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "core/backoff.hpp"
#include "core/clock.hpp"
#include "core/endpoints.hpp"
#include "core/pipeline/pipeline.hpp"
#include "core/relay/condition_log.hpp"
#include "core/relay/cursor.hpp"
#include "core/relay/noted.hpp"

namespace outbox {

class Relay {
  public:
    enum class Wish { recover, read, take_retries, pause, note, consult, record, save, wait };

    struct Intervals {
        Micros poll_min = milliseconds(250);  // first pause between looks that find nothing
        Micros poll_max = seconds(10);        // longest pause
        Micros save = seconds(1);             // longest time between saves of the cursor
    };

    // After this many delivered events the cursor is saved and flushed to disk. A crash repeats at
    // most this many.
    static constexpr std::uint64_t max_unsaved_events = 100'000;
    // While there is trouble, records are written and retries are taken at these intervals.
    static constexpr Micros trouble_pause = milliseconds(50);
    // This many records or retries do not wait for trouble_pause.
    static constexpr std::size_t many_records = 100;
    static constexpr std::size_t many_retries = 100;
    // Pause after retries were due but could not be taken.
    static constexpr Micros retry_pause = seconds(1);
    // Pause after an operator was found to hold the lock of the cursor.
    static constexpr Micros busy_pause = milliseconds(100);
    // While a window holds several commits, the next look waits this long for more. Each look takes
    // a snapshot, and the session that wakes the relay pays for a system call.
    static constexpr Micros gather_time = milliseconds(1);
    // An outage that lasts for this time is saved at once.
    static constexpr Micros long_outage = seconds(60);

    Relay(const Clock& clock, DeliveryStats& stats, std::uint64_t seed);
    ~Relay();
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;

    // Takes effect at once: the next look is due.
    void set_intervals(const Intervals& intervals) noexcept;

    // Starts from cursor(), which the home has set. Events in flight are abandoned and will be sent
    // again. The home must load the held keys into pipeline().
    void start(std::unique_ptr<Sink> sink, const Pipeline::Limits& limits);
    // Stops delivery, as for a destination that cannot be used as configured.
    void stop() noexcept;
    bool started() const noexcept { return pipeline_ != nullptr; }
    // Call this after an operator's change, once the held keys have been loaded again, and after a
    // change of outbox.endpoint.
    void follow_operator(bool paused) noexcept;
    // The same, with the number of calls of outbox.resume(): a new one ends all waits.
    void follow_resumes(std::int64_t resumed) noexcept;
    void paused() noexcept { pipeline_->gone_noted(); }

    // Returns the next task. `committed` means that a commit may have added events since the last
    // look. Lets the pipeline send and receive.
    Wish next(bool committed);
    // Latest time for the next call of next(), even if nothing happens.
    Micros deadline(bool committed) const noexcept;

    // Reading.
    bool in_window() const noexcept { return in_window_; }
    const Snapshot& frontier() const noexcept { return frontier_; }
    const Settled& settled_before() const noexcept { return settled_before_; }
    // `end` is the snapshot of the look. `several` means that the window may have more than one
    // event.
    void window_found(const Snapshot& end, bool several);
    void nothing_found(const Snapshot& end);
    EventBlock& block();
    // `last_position` is the position of the last event that was read, also if it is for another
    // destination.
    void block_read(bool end_of_window, std::int64_t last_position);
    // For a home that does not wait for its transactions: Wish::read is under way. next() goes on
    // with other tasks until window_found(), nothing_found() or block_read(). These must not be
    // called while another task is under way, because they may add to what it is about.
    void reading() noexcept { reads_ = true; }
    // It failed, and is asked for again after this pause.
    void reading_failed(Micros pause) noexcept;
    // No look is due before a commit.
    void stand_by() noexcept { next_look_ = never; }

    // Exactly once. transactions() must only be called if a wish was about them.
    Transactions& transactions() noexcept { return *transactions_; }
    bool has_transactions() const noexcept { return transactions_ != nullptr; }
    void recovered();
    void noted();
    std::span<const NotedTransactions::Passed> passed_transactions() const noexcept {
        return noted_.passed();
    }

    // Endpoints. These must only be called if a wish was about them. After question() the sink waits
    // for one of the other two.
    std::string question() { return endpoints_->ask(place()); }
    // For a home that does not wait for the answer: takes the place of next() and deadline()
    // meanwhile. Returns Wish::read or Wish::wait.
    Wish next_beside_question(bool committed);
    Micros deadline_beside_question(bool committed) const noexcept;
    void consulted(EndpointAnswer&& answer) { endpoints_->answered(std::move(answer)); }
    void consult_failed() noexcept { endpoints_->failed(); }

    // Trouble. `next_retry` is the time at which the next row of outbox.delivery is due, or
    // `never`.
    bool has_records() const noexcept;
    void recorded(Micros next_retry);
    bool hurries() const noexcept { return hurries_; }
    void hurried(bool all) noexcept { hurries_ = !all; }
    void retries_taken(std::size_t count, Micros next_retry) noexcept;

    // Saving.
    Cursor& cursor() noexcept { return cursor_; }
    const Cursor& cursor() const noexcept { return cursor_; }
    bool has_something_to_save() const noexcept;
    // True if a relay that leaves must save. Counters that are behind make no save due before: they
    // are saved with the cursor.
    bool must_save_to_leave() const noexcept;
    // Counters to save with cursor(), which has those that were read.
    const DeliveryStats& stats() const noexcept { return stats_; }
    // The value to save as Cursor::failing_since.
    Micros outage_to_save() const noexcept;
    bool may_save_cursor() const noexcept { return !cursor_.foreign; }
    // True if the saved cursor must be on disk before saved().
    bool flush_is_due() const noexcept;
    void saved() noexcept;

    void cursor_is_busy() noexcept { write_later(busy_pause); }
    // The task failed without an effect. It is asked for again after this pause.
    void write_later(Micros pause) noexcept { not_before_ = clock_.now() + pause; }

    // Must only be called while started().
    Pipeline& pipeline() noexcept { return *pipeline_; }
    const Pipeline& pipeline() const noexcept { return *pipeline_; }

    // The condition of the destination, for the status view, and its reason.
    Condition::Kind condition() const noexcept;
    const std::string& reason() const noexcept;
    // Since when it fails, or some of its lanes do, and when the next attempt is; Unix time, 0 if it
    // works or that is not known. line_is_due() notices changes. Pauses do not end an outage, nor
    // does a restart, if the new relay finds the destination still failing.
    Micros failing_since() const noexcept { return failing_since_; }
    Micros next_attempt() const noexcept;
    // Returns whether a line about the condition is due in the server log. condition_log() has the
    // counts for the line.
    bool line_is_due();
    const ConditionLog& condition_log() const noexcept { return condition_log_; }

  private:
    bool has_counters_to_save() const noexcept;
    Micros outage_due() const noexcept;
    bool earlier_outage_is_over() const noexcept;

    // The step at which next() goes on.
    enum class Step { recover, consult, read, take_retries, send, pause, note, record, save, wait };

    bool is_due(Micros due) const noexcept { return clock_.now() >= due; }
    Micros recover_due() const noexcept;
    Micros pause_due() const noexcept;
    Micros note_due() const noexcept;
    Micros consult_due() const noexcept;
    void look_at_endpoints() noexcept;
    bool leaves_endpoints_out() const noexcept;
    bool fails_partly() const noexcept;
    Micros look_due(bool committed) const noexcept;
    Micros retry_due() const noexcept;
    Micros record_due() const noexcept;
    Micros save_due() const noexcept;
    void send();
    void settle();
    void settle_front(std::int64_t position);
    EndpointPlace place() const;
    EndpointPlace place_of_cursor() const;

    const Clock& clock_;
    DeliveryStats& stats_;
    std::uint64_t seed_;
    std::unique_ptr<Pipeline> pipeline_;
    Step step_ = Step::recover;

    // Exactly once. `transactions_` belongs to the sink; nullptr if it has none.
    Transactions* transactions_ = nullptr;
    NotedTransactions noted_;
    bool recovered_ = true;
    std::string recovery_trouble_;

    Endpoints* endpoints_ = nullptr;  // belongs to the sink; nullptr if it has none
    Micros endpoints_look_ = 0;       // when a look at the log is one at the endpoints, too

    // Reading. `open_windows_` has the snapshot at the end of each window that is not settled.
    // Reading goes on from `frontier_`, the end of the last one.
    Snapshot frontier_;
    Settled settled_before_;
    std::deque<Snapshot> open_windows_;
    Settled settled_in_front_;  // settled_before_ of the first open window
    bool in_window_ = false;    // the last window has events that are not read yet
    bool reads_ = false;        // see reading()
    EventBlock* block_ = nullptr;
    Backoff poll_;
    Micros longest_poll_ = 0;
    Micros next_look_ = 0;
    Micros read_again_ = 0;  // after a failure
    Micros gather_until_ = 0;

    // Saving.
    Cursor cursor_;
    Micros save_interval_ = 0;
    bool upto_is_front_ = false;  // cursor_.upto is the end of the first open window
    bool unsaved_ = false;
    Micros saved_at_ = 0;
    Micros not_before_ = 0;              // for tasks that need the lock of the cursor
    std::uint64_t counted_at_save_ = 0;  // deliveries and failures
    Micros outage_at_save_ = 0;
    std::uint64_t delivered_at_flush_ = 0;  // when the saved cursor was last known to be on disk

    // Trouble.
    Micros recorded_at_ = 0;
    Micros retries_due_ = 0;
    Micros retries_taken_at_ = 0;  // 0 after a take of many
    bool hurries_ = false;
    ConditionLog condition_log_;
    Micros failing_since_ = 0;
    Micros outage_changed_at_ = 0;  // when it began or ended, on the steady clock
    // An outage of an earlier relay, until this one knows whether it lasts; Unix time, 0 if none.
    Micros earlier_outage_ = 0;
    Micros started_at_ = 0;
    std::uint64_t delivered_at_start_ = 0;
};

}  // namespace outbox
