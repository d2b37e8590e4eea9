// Between the log and a sink: which event may go now, what is in flight, what is settled.
//
//   window   the events of all transactions visible in one snapshot and not in an earlier one.
//            Windows are opened, filled with blocks of events in order of position, and closed.
//   settled  confirmed by the destination.
//
// Order. A sink that is `ordered` gets events as they come. For any other the pipeline keeps the
// order of each key: while an event of a key is in flight, later ones of the key wait behind it.
//
// Failure. A failed batch goes back to the front, the destination is left alone for a while
// (exponential back-off with full jitter, at least what it asked for), then probed with one batch;
// the first confirmation opens it again.
//
// Memory is bounded by `Limits`; has_room() says when the reader must wait. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backoff.hpp"
#include "clock.hpp"
#include "delivery_stats.hpp"
#include "event.hpp"
#include "sinks/sink.hpp"

namespace outbox {

struct Window {
    EventBlock* first = nullptr;  // the blocks that hold unsettled events
    EventBlock* last = nullptr;
    std::int64_t settled_to = 0;  // highest position below the first unsettled event
    bool any_settled = false;
    bool closed = false;     // everything of it has been read
    std::size_t passed = 0;  // events up to settled_to
};

class Pipeline {
  public:
    struct Limits {
        std::size_t max_events = 10'000;           // read and not settled
        std::size_t max_bytes = 16 * 1024 * 1024;  // memory of their blocks
        Micros backoff_base = milliseconds(100);
        Micros backoff_cap = seconds(30);

        bool operator==(const Limits&) const = default;
    };
    // Events settled behind the first unsettled one are delivered again after a crash. This many
    // times max_events is the most there can be of them.
    static constexpr std::size_t max_span_factor = 16;

    Pipeline(std::unique_ptr<Sink> sink, const Limits& limits, const Clock& clock,
             DeliveryStats& stats, std::uint64_t seed);
    ~Pipeline();
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    // The log's side. Between open_window() and close_window() blocks are taken, filled and
    // admitted; a block that is not admitted is given back by putting it in again with put_back().
    bool has_room() const noexcept;
    void open_window();
    EventBlock* take_block();
    void put_back(EventBlock* block) noexcept;
    void admit(EventBlock* block);
    void close_window();

    // The destination's side.
    int descriptor() const noexcept { return sink_->descriptor(); }
    // When step() must be called though the descriptor is quiet.
    Micros deadline() const noexcept;
    void step();

    // Settlement. How many windows at the front were settled since the last call; they are
    // forgotten.
    std::size_t take_settled_windows() noexcept;
    // The highest position of the windows settled so far.
    std::int64_t highest_settled() const noexcept { return highest_settled_; }
    // Of the front window: everything up to this position is settled. Nothing when no event of it
    // was.
    std::optional<std::int64_t> front_position() const noexcept;

    bool idle() const noexcept { return unsettled_ == 0 && windows_.empty(); }
    std::size_t unsettled() const noexcept { return unsettled_; }
    // occurred_at of the first event that is not settled.
    std::optional<Micros> oldest() const noexcept;

    bool backing_off() const noexcept { return resume_at_ != 0; }
    // Failures since the last confirmation.
    std::uint64_t failures() const noexcept { return failures_; }
    const std::string& last_error() const noexcept { return last_error_; }

  private:
    void enqueue(Event& event);
    void submit_ready();
    Batch& form_batch();
    void confirm(Batch& batch);
    void settle(Event& event, Micros now, Micros unix_now);
    void release_key(Event& event);
    void block_settled(EventBlock& block);
    void fail(const Outcome& outcome);
    void requeue_failed();
    void advance_front();
    void recycle(EventBlock* block) noexcept;

    std::unique_ptr<Sink> sink_;
    const Capabilities capabilities_;
    const Limits limits_;
    const Clock& clock_;
    DeliveryStats& stats_;
    Backoff backoff_;

    std::deque<Window> windows_;
    std::size_t settled_windows_ = 0;
    std::int64_t highest_settled_ = 0;
    std::size_t unsettled_ = 0;
    std::size_t span_ = 0;        // events from the first unsettled one on
    std::size_t held_bytes_ = 0;  // of blocks in use
    std::vector<std::unique_ptr<EventBlock>> spare_blocks_;

    std::deque<Event*> ready_;
    std::unordered_map<std::string_view, Event*>
        last_of_key_;  // of each key that has unsettled events
    std::uint64_t next_turn_ = 1;

    std::size_t batches_in_flight_ = 0;
    std::size_t of_this_period_ = 0;               // those sent since the last failure
    std::vector<std::unique_ptr<Batch>> batches_;  // all there are: spare or in flight
    std::vector<Batch*> spare_batches_;
    std::vector<Outcome> outcomes_;
    std::vector<Event*> failed_;

    Micros resume_at_ = 0;      // 0: not backing off
    std::uint64_t period_ = 0;  // counts back-offs
    std::uint64_t failures_ = 0;
    std::string last_error_;
};

}  // namespace outbox
