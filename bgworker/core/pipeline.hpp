// Between the log and a sink: which event may go now, what is in flight, what is settled.
//
//   window   the events of all transactions visible in one snapshot and not in an earlier one.
//            Windows are opened, filled with blocks of events in order of position, and closed.
//   settled  confirmed by the destination.
//
// Order. A sink that is `ordered` gets events as they come. For any other the pipeline keeps the
// order of each key: while an event of a key is in flight, later ones of the key wait behind it.
// Those that follow it may travel with it in one batch, as far as the sink's KeyPolicy has it.
//
// Failure of the destination. The batch goes back to the front, the destination is left alone for a
// while (exponential back-off with full jitter, at least what it asked for), then probed with one
// batch; the first confirmation opens it again. A request that fails among others that succeed is
// sent again alone, soon, while the others go on; several in a row are a failure of the
// destination, and one that fails time after time while others succeed is the fault of its event.
//
// Failure of an event. A batch that is refused is halved until the offender stands alone. That one
// leaves the pipeline for outbox.delivery, where it waits for another attempt or for a person, and
// so do the later events of its key, which it holds. Where the destination says itself which events
// of a batch it took, those that it did not take are treated as if they had been sent alone. When
// everything is refused, with no success in between, the destination is backed off from as well: it
// is more likely at fault than all events.
//
// Retries come back from there as blocks that belong to no window.
//
// While a window is open and there is room, whoever reads the log goes on to read; so long batches
// that are not full wait for what comes.
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
#include <unordered_set>
#include <vector>

#include "backoff.hpp"
#include "clock.hpp"
#include "delivery_stats.hpp"
#include "event.hpp"
#include "ready_queue.hpp"
#include "sinks/sink.hpp"

namespace outbox {

struct Window {
    EventBlock* first = nullptr;  // the blocks that hold unsettled events
    EventBlock* last = nullptr;
    std::int64_t settled_to = 0;  // highest position below the first unsettled event
    bool any_settled = false;
    bool closed = false;             // everything of it has been read,
    std::int64_t last_position = 0;  // up to here
    std::size_t passed = 0;          // events up to settled_to
};

// What has to be written to outbox.delivery before an event may leave the pipeline.
struct Record {
    enum class Kind {
        refused,
        parked,     // waits behind an earlier event of its key
        confirmed,  // a retry that was delivered
        unsent,     // a retry that is held back by an earlier one of its key
    };
    Event* event = nullptr;
    Kind kind = Kind::parked;
    bool permanent = false;  // refused: for good
    std::string error{};     // refused: why
};

// That an event was confirmed, for whoever wants to know later.
struct Receipt {
    Uuid event_id{};
    std::int64_t position = 0;
    Micros published_at = 0;   // since the Unix epoch
    std::string message_id{};  // empty: the destination has none
};

class Pipeline {
  public:
    struct Limits {
        std::size_t max_events = 10'000;           // read and not settled
        std::size_t max_bytes = 16 * 1024 * 1024;  // memory of their blocks
        Micros backoff_base = milliseconds(100);
        Micros backoff_cap = seconds(30);
        bool receipts = false;  // are kept until they are taken

        bool operator==(const Limits&) const = default;
    };
    // Events settled behind the first unsettled one are delivered again after a crash. This many
    // times max_events is the most there can be of them.
    static constexpr std::size_t max_span_factor = 16;
    // So many keys can be held by events in trouble; then nothing more is read.
    static constexpr std::size_t max_held_keys = 100'000;
    // Failed requests in a row, with no success in between, that make it the destination's failure.
    static constexpr unsigned failures_of_destination = 3;
    // Failures of one event, while others succeed, that make it the event's fault.
    static constexpr unsigned failures_of_event = 3;
    // Refused events in a row after which the destination is backed off from.
    static constexpr unsigned max_refused_in_a_row = 10;

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
    // `last_position`: what was read and not admitted, being for others, ends there.
    void close_window(std::int64_t last_position = 0);

    // Events in trouble. A key is held while outbox.delivery has an event of it that comes first:
    // events of the log that have it are parked.
    void hold_key(std::string_view key);
    void free_key(std::string_view key);
    // These keys, those of what is to be recorded, and no others.
    void hold_keys(std::vector<std::string>&& keys);
    std::size_t held_keys() const noexcept { return held_keys_.size(); }
    // What is to be recorded. recorded() says that all of it has been.
    const std::vector<Record>& records() const noexcept { return records_; }
    void recorded();
    // Takes a block of retries, in order of position, each key's from its first one on.
    void admit_retries(EventBlock* block);
    // Whether retries are of use now: not while nothing can be sent anyway.
    bool wants_retries() const noexcept { return !paused_ && !backing_off() && has_memory(); }

    // The destination's side.
    int descriptor() const noexcept { return sink_->descriptor(); }
    // When step() must be called though the descriptor is quiet.
    Micros deadline() const noexcept;
    void step();
    // While paused nothing is sent; what is in flight ends as it may.
    void pause(bool paused) noexcept { paused_ = paused; }
    bool paused() const noexcept { return paused_; }

    const std::vector<Receipt>& receipts() const noexcept { return receipts_; }
    void receipts_taken() noexcept { receipts_.clear(); }

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
    // Failures of the destination since the last confirmation.
    std::uint64_t failures() const noexcept { return failures_; }
    const std::string& last_error() const noexcept { return last_error_; }

  private:
    bool has_memory() const noexcept;
    void take_in(EventBlock& block);
    void join_lane(Event& event);
    void enqueue(Event& event);
    bool waits_for_its_key(const Event& event) const noexcept;
    bool is_held(const Event& event) const;
    void record(Event& event, Record::Kind kind);
    void park(Event& event);
    template <class Predicate>
    void park_unsent(Predicate is_meant);
    void record_waiting(Event& event);

    void submit_ready();
    Batch* form_batch();
    void fill(Batch& batch, Lane& lane);
    bool waits_for_more(const Lane& lane) const noexcept;
    bool fills_batch(const Lane& lane) const noexcept;
    void bring_back_set_aside(Micros now);

    void confirm(const Outcome& outcome);
    void keep_receipt(const Outcome& outcome, std::size_t i, Micros unix_now);
    void destination_answered(const Batch& batch) noexcept;
    void destination_works() noexcept;
    void confirm(Event& event, Micros now, Micros unix_now);
    void arrived(Event& event, Micros now, Micros unix_now);
    void settle(Event& event);
    void release_key(Event& event);
    void block_settled(EventBlock& block);

    void divide(const Outcome& outcome);
    void keep_in_chain(std::span<Event* const> chain, std::span<Event* const> left);
    void fail(const Outcome& outcome);
    void count_failed(const Batch& batch) noexcept;
    void fail_by_fate(const Outcome& outcome);
    void halve(Batch& batch);
    void requeue(Batch& batch);
    void on_failed(const Outcome& outcome);
    void set_aside(Batch& batch);
    void on_refused(const Outcome& outcome);
    void refuse(Event& event, const std::string& error, bool permanent);
    void back_off(const Outcome& outcome);
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
    std::vector<EventBlock*> retry_blocks_;  // belong to no window
    std::vector<std::unique_ptr<EventBlock>> spare_blocks_;

    ReadyQueue ready_;
    std::string lane_name_;      // scratch
    std::vector<Event*> aside_;  // failed on their own; each goes again at its again_at
    std::unordered_map<std::string_view, Event*>
        last_of_key_;  // of each key that has unsettled events
    std::uint64_t next_turn_ = 1;

    std::size_t batches_in_flight_ = 0;
    std::size_t of_this_period_ = 0;               // those sent since the last failure
    std::vector<std::unique_ptr<Batch>> batches_;  // all there are: spare or in flight
    std::vector<Batch*> spare_batches_;
    Batch divided_;  // an event of a batch that was taken in part
    std::vector<Outcome> outcomes_;
    std::vector<Event*> failed_;

    struct KeyHash : std::hash<std::string_view> {
        using is_transparent = void;
    };
    std::unordered_set<std::string, KeyHash, std::equal_to<>> held_keys_;
    std::vector<Record> records_;
    std::vector<Receipt> receipts_;

    bool paused_ = false;
    Micros resume_at_ = 0;      // 0: not backing off
    std::uint64_t period_ = 0;  // counts back-offs
    std::uint64_t failures_ = 0;
    unsigned failed_in_a_row_ = 0;   // requests, since the last confirmation
    unsigned refused_in_a_row_ = 0;  // events, since the last confirmation
    std::string last_error_;
};

}  // namespace outbox
