// Between the log and a sink: decides which event is sent when, and knows what is in flight and
// what is settled.
//
//   KeyChains      which event of each key may be sent, and which keys are held
//   Lanes          the events that may be sent, fresh ones and suspects, by lane
//   LaneHealth     whether a lane accepts requests, and how many
//   Circuit        whether the destination accepts requests
//   WindowLedger   up to where the log is settled
//   Pipeline       combines them
//
// Order. An `ordered` sink gets events in the order of the log. For all other sinks the pipeline
// keeps the order of each key: while an event of a key is in flight, later ones of the key wait
// behind it. If the sink's KeyPolicy allows it, the events behind it travel in the same batch.
//
// Failure. An event whose attempt failed is a suspect. It waits for a back-off of its own. All
// suspects together have a small share of the requests in flight; fresh keys have the rest. The
// outcome of a suspect is evidence about the suspect alone. A lane is down when several requests
// with fresh keys fail in a row. The destination is down when several lanes go down, when
// connections fail one after the other, or when it denies access. While something is down only
// probes are sent, after a back-off: a fresh key if there is one, otherwise each suspect in turn.
//
// A suspect that fails again and again while its lane works for others is at fault. So is an event
// that is refused. It leaves the pipeline for outbox.delivery, where it waits for another attempt
// or for an operator. It holds its key, so later events of the key leave too. A batch that is
// refused or fails is halved until the event at fault is alone.
//
// A request hangs when it takes much longer than usual and later requests overtake it. It does not
// count among those in flight, so that others go on, up to Capabilities::more_batches.
//
// An `ordered` sink has one lane and no suspects: a failed batch goes back to the front, and the
// destination is down until a probe is confirmed.
//
// Memory is bounded by `Limits`, plus a quarter for retries and for probes of a destination that is
// down. Pipelines of one process may share a budget besides. has_room() says when the reader must
// wait. Events that wait behind suspects, or for a lane that is down while others work, move to
// outbox.delivery before they fill the memory. Nothing moves there while the destination is down.
// Events of the log whose key is held leave memory at once, for a line of those that wait to be written
// there. So other keys pass while a long line is written.
//
// While a window is open and has_room() is true, the home must go on reading: batches that are not
// full wait for more events.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backoff.hpp"
#include "core/clock.hpp"
#include "core/delivery_stats.hpp"
#include "core/pipeline/health.hpp"
#include "core/pipeline/key_chains.hpp"
#include "core/pipeline/lanes.hpp"
#include "core/pipeline/memory_budget.hpp"
#include "core/pipeline/window_ledger.hpp"
#include "core/sink.hpp"

namespace outbox {

// A change that must be written to outbox.delivery before the event may leave the pipeline.
struct Record {
    enum class Kind {
        refused,    // has failed, which counts as an attempt
        released,   // waits, through no fault of its own
        moved,      // is in flight, but the log must not wait for it
        parked,     // waits behind an earlier event of its key
        confirmed,  // a retry that was delivered
        unsent,     // a retry that waits for an earlier one of its key
    };
    // A parked event may have left memory. Then it has only a position, a transaction and a key.
    Event* event = nullptr;
    Kind kind = Kind::parked;
    bool permanent = false;  // refused: no further attempt
    std::string error{};     // refused, released: the reason
    unsigned steps = 0;      // released: how long it waits, as after this many attempts
};

// The confirmation of an event, to be kept on request.
struct Receipt {
    Uuid event_id{};
    std::int64_t position = 0;
    Micros published_at = 0;   // since the Unix epoch
    std::string message_id{};  // empty if the destination has none
};

class Pipeline {
  public:
    struct Limits {
        std::size_t max_events = 10'000;           // read and not settled
        std::size_t max_bytes = 16 * 1024 * 1024;  // of their blocks
        Micros backoff_base = milliseconds(100);
        Micros backoff_cap = seconds(30);
        bool receipts = false;      // receipts are kept until they are taken
        bool moves_waiting = true;  // waiting events may leave for outbox.delivery
        // Events up to this position are delivered again, so their age does not count as latency.
        std::int64_t live_after = 0;
        MemoryBudget* budget = nullptr;  // shared with other pipelines, which it outlives

        bool operator==(const Limits&) const = default;
    };
    // After a crash, all events behind the first unsettled one are delivered again, settled or not.
    // There are at most this many times max_events of them.
    static constexpr std::size_t max_span_factor = 16;
    // Suspects may use one in this many of the requests in flight, but at least one.
    static constexpr std::size_t suspects_share = 8;
    // This many events of the line are written to outbox.delivery at a time, so that other events do
    // not wait for long.
    static constexpr std::size_t max_parked = EventBlock::max_events;
    // While there are fresh events, this many requests with them are sent for one with suspects.
    static constexpr unsigned fresh_per_suspect = 3;
    // With this many suspects in memory no more retries are taken from outbox.delivery.
    static constexpr std::size_t max_suspects = 256;
    // Failures of one event, while its lane works for others, after which the event is at fault:
    // for failures without an explanation, and for failures that something else explains.
    static constexpr unsigned failures_of_event = 3;
    static constexpr unsigned unavailable_to_event = 10;
    // After this many failed connections in a row the destination is down.
    static constexpr unsigned max_lost_connections = 3;
    // After this many lanes went down without a success in between, the destination is down.
    static constexpr unsigned max_lanes_lost = 3;
    // A request hangs when it takes this many times the usual duration, and at least this long.
    static constexpr Micros hangs_factor = 8;
    static constexpr Micros hangs_at_least = milliseconds(25);
    static constexpr Micros hangs_at_first = seconds(1);  // while the usual duration is not known

    Pipeline(std::unique_ptr<Sink> sink, const Limits& limits, const Clock& clock,
             DeliveryStats& stats, std::uint64_t seed);
    ~Pipeline();
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    // The side of the log. Between open_window() and close_window() blocks are taken, filled and
    // admitted. A block that is not admitted must be returned with put_back().
    bool has_room() const noexcept;
    void open_window() { ledger_.open(); }
    // True if there is neither room to read nor anything to send.
    bool starves() const noexcept;
    EventBlock* take_block();
    void put_back(EventBlock* block) noexcept;
    // Keeps no memory for later blocks until one is taken.
    void free_spare_blocks() noexcept {
        spare_blocks_.clear();
        keeps_spare_blocks_ = false;
    }
    void admit(EventBlock* block);
    // `last_position` is the position up to which events were read, also if they were not admitted
    // because they are for other destinations.
    void close_window(std::int64_t last_position = 0) {
        ledger_.close(last_position);
        stepped_at_ = -1;
    }

    // Events in trouble. A key is held while outbox.delivery has an event of it that must go first.
    // Events of the log with a held key are parked.
    void hold_key(std::string_view key);
    void free_key(std::string_view key) { chains_.free(key); }
    // Replaces all held keys. Keys of events in records() stay held.
    void hold_keys(std::vector<std::string>&& keys);
    std::size_t held_keys() const noexcept { return chains_.held(); }
    // Changes to be written to outbox.delivery. Call gather_records(), which adds the first events of
    // the line, before they are written, and recorded() once they have been committed.
    bool has_records() const noexcept { return !records_.empty() || !ledger_.line().empty(); }
    void gather_records();
    const std::vector<Record>& records() const noexcept { return records_; }
    void recorded();
    // Takes a block of retries in order of position. Each key must begin with its first event.
    void admit_retries(EventBlock* block);
    // True if retries can be sent now.
    bool wants_retries() const noexcept;
    // True once after something that was down works again: released events are due at once.
    bool take_recovered() noexcept { return std::exchange(recovered_, false); }

    // The side of the destination.
    int descriptor() const noexcept { return sink_->descriptor(); }
    Transactions* transactions() noexcept { return sink_->transactions(); }
    Endpoints* endpoints() noexcept { return sink_->endpoints(); }
    // Counts requests that were sent again as failed attempts.
    bool report(SinkReport& report);
    // Time at which step() must be called even if the descriptor is quiet.
    Micros deadline() const noexcept;
    void step();
    // While paused nothing is sent. Requests in flight end normally.
    void pause(bool paused) noexcept;
    bool paused() const noexcept { return paused_ || !gone_.empty(); }
    // An operator wants what waits to be tried at once: back-offs end, also those that the destination
    // asked for.
    void forget_waits();
    // Why the destination is gone, or empty. Nothing is sent until the home has paused it, and has
    // called gone_noted().
    const std::string& gone() const noexcept { return gone_; }
    void gone_noted() noexcept {
        gone_.clear();
        pause(true);
    }

    const std::vector<Receipt>& receipts() const noexcept { return receipts_; }
    void receipts_taken() noexcept { receipts_.clear(); }

    // Settlement. Returns the number of windows at the front that were settled since the last call,
    // and forgets them.
    std::size_t take_settled_windows() noexcept { return ledger_.take_settled(); }
    // The highest position of the windows settled so far.
    std::int64_t highest_settled() const noexcept { return ledger_.highest_settled(); }
    // Everything up to this position of the front window is settled; std::nullopt if nothing is.
    std::optional<std::int64_t> front_position() const noexcept { return ledger_.front_position(); }

    bool idle() const noexcept { return unsettled_ == 0 && ledger_.empty(); }
    std::size_t unsettled() const noexcept { return unsettled_ + ledger_.line().size(); }
    // Number of requests in flight.
    std::size_t in_flight() const noexcept { return in_flight_.size(); }
    // While paused: whether outcomes may still come. A sink with endpoints keeps what it has not sent.
    bool expects_outcomes() const noexcept;
    // occurred_at of the first event that is not settled.
    std::optional<Micros> oldest() const noexcept;

    // True while nothing is sent because of a back-off.
    bool backing_off() const noexcept;
    // Failures of the destination, or of all lanes with events, since the last confirmation.
    std::uint64_t failures() const noexcept;
    // While something is down, or has asked for a pause: time of the next attempt, or `never` while one
    // is under way or nothing may be sent. Must only be asked if failures(), lanes_down(),
    // only_suspects_left() or is_throttled().
    Micros next_attempt() const noexcept;
    // True if all events in memory have failed, and nothing has been confirmed since.
    bool only_suspects_left() const noexcept;
    const std::string& last_error() const noexcept { return last_error_; }

    // Number of events that have failed or hang.
    std::size_t suspects() const noexcept;
    std::size_t lanes_down() const noexcept;
    // The last error of a lane that is down, or empty if none is.
    const std::string& lane_error() const noexcept;
    // True if any lane has asked for fewer requests.
    bool is_throttled() const noexcept;
    // The lowest limit of any throttled lane, in requests per second; 0 if none is throttled.
    double request_limit() const noexcept;

  private:
    struct Request : Batch {
        Lane* lane = nullptr;
        std::uint64_t number = 0;
        std::uint64_t period = 0;       // of the destination's circuit
        std::uint64_t lane_period = 0;  // of the lane's circuit
        Micros sent_at = 0;
        bool fresh = true;
        bool often = false;  // has suspects that failed several times
        bool hangs = false;
    };

    std::size_t held_bytes_limit() const noexcept;
    std::size_t line_bytes() const noexcept { return ledger_.line().size() * sizeof(Parked); }
    bool has_memory() const noexcept;
    bool has_spare_memory() const noexcept;
    bool has_span() const noexcept;
    void take_in(TrackedBlock& block);
    void join_lane(Tracked& event);
    void enqueue(Tracked& event);
    bool waits_for_its_key(const Event& event) const noexcept;
    bool is_held(const Event& event) const;
    void record(Tracked& event, Record::Kind kind);
    void put_in_line(Tracked& event);
    void park(Tracked& event);
    void park_linked(Tracked* first);
    void park_waiting(Tracked& event);
    void hold_behind(Tracked& event);
    template <class Predicate>
    void park_unsent(Predicate is_meant);
    void moved(Tracked& event);
    void finish(Tracked& event);
    void recycle(TrackedBlock* block) noexcept;

    // Sending.
    std::size_t most_requests() const noexcept;
    std::size_t suspects_allowed() const noexcept;
    void submit_ready(Micros now);
    bool send_one(Micros now);
    bool send_fresh(Micros now, bool probe);
    bool send_suspect(Micros now);
    bool send_suspects(Tracked& first, Micros now);
    bool probe_with_suspect(Micros now);
    bool may_take_fresh(const Lane& lane, Micros now) const noexcept;
    bool may_take_suspect(const Lane& lane, Micros now) const noexcept;
    Tracked* due_suspect(const Lane& lane, Micros now) const noexcept;
    static Tracked* longest_waiting(const Lane& lane) noexcept;
    Micros suspect_due(const Lane& lane) const noexcept;
    Request& spare_request();
    void submit(Request& request, Lane& lane, bool fresh, Micros now);
    bool take(Request& request, Tracked& event, std::size_t& limit);
    void take_with_followers(Request& request, Tracked& event, std::size_t& limit);
    void fill(Request& request, Lane& lane);
    void fill_with_suspects(Request& request, Lane& lane, Tracked& first, Micros now);
    bool waits_for_more(const Lane& lane) const noexcept;
    bool fills_batch(const Lane& lane) const noexcept;

    // Requests that hang.
    Micros hangs_at(const Request& request) const noexcept;
    bool can_hang(const Request& request, bool explores) const noexcept;
    bool explores() const noexcept;
    void mark_hanging(Micros now);

    // Outcomes.
    void take_outcome(const Outcome& outcome, Micros now);
    void end(Request& request);
    void weigh(const Request& request, const Outcome& outcome, Fate fate, Scope scope, Micros now);
    void weigh_confirmed(Lane& lane, Micros now);
    void weigh_answered(Lane& lane, Micros now);
    void lane_failed(Lane& lane, Micros retry_after, Micros now);
    void destination_failed(Micros retry_after, Micros now);
    void forgive(Lane& lane, Micros now);
    void confirm(const Outcome& outcome, Micros now);
    void keep_receipt(const Outcome& outcome, std::size_t i, Micros unix_now);
    void confirm(Tracked& event, Micros now, Micros unix_now);
    void arrived(Tracked& event, Micros now, Micros unix_now);
    void release_key(Tracked& event);
    void divide(const Outcome& outcome, Micros now);
    void not_confirmed(const Request& request, std::span<Event* const> events,
                       const EventOutcome& why, Micros now);
    void requeue(std::span<Event* const> events);
    void requeue_failed();
    static void halve(std::span<Event* const> events);
    void refused(const Request& request, std::span<Event* const> events, const EventOutcome& why,
                 Micros now);
    void failed(Tracked& event, const EventOutcome& why, bool alone, Micros now);
    Micros pause_after(unsigned failures) noexcept;
    bool is_at_fault(const Tracked& event, const EventOutcome& why) const noexcept;
    void suspect_after(Tracked& event, Micros pause, Micros now);
    void refuse(Tracked& event, const std::string& error, bool permanent);

    // Freeing memory.
    std::size_t max_waiting() const noexcept;
    bool is_crowded() const noexcept;
    bool is_stretched() const noexcept;
    bool blocks(const Lane& lane) const noexcept;
    bool any_lane_blocks() const noexcept;
    bool is_outage() const noexcept;
    bool may_move() const noexcept;
    void make_room(Micros now);
    void release_behind_suspects(Micros now);
    void release_lane(Lane& lane);
    void release_front(Micros now);
    void release(Tracked& event, unsigned steps);
    void move(Request& request);

    bool all_lanes_down() const noexcept;

    std::unique_ptr<Sink> sink_;
    const Capabilities capabilities_;
    const Limits limits_;
    const Clock& clock_;
    DeliveryStats& stats_;
    Backoff pauses_;  // of suspects
    std::uint64_t seed_;

    WindowLedger ledger_;
    MemoryCharge line_memory_;
    KeyChains chains_;
    Lanes lanes_;
    Circuit destination_;

    std::vector<std::unique_ptr<TrackedBlock>> spare_blocks_;
    bool keeps_spare_blocks_ = true;
    std::vector<TrackedBlock*> blocks_in_use_;
    std::size_t unsettled_ = 0;   // events in memory
    std::size_t held_bytes_ = 0;  // of blocks in use
    std::uint64_t next_turn_ = 1;
    std::string lane_name_;  // scratch space

    std::vector<std::unique_ptr<Request>> requests_;  // all requests, spare or in flight
    std::vector<Request*> spare_requests_;
    std::vector<Request*> in_flight_;  // in the order of sending
    std::uint64_t sent_ = 0;           // number of requests so far
    std::size_t fresh_in_flight_ = 0;  // without those that hang
    std::size_t suspects_in_flight_ = 0;
    std::size_t often_in_flight_ = 0;
    std::size_t hanging_ = 0;
    unsigned fresh_since_suspect_ = 0;
    std::vector<Outcome> outcomes_;
    std::vector<Tracked*> failed_;  // to be put back to the front

    std::vector<Record> records_;
    std::vector<Event> from_line_;  // events of the line that records_ has
    std::vector<Receipt> receipts_;

    bool paused_ = false;
    std::string gone_;
    bool recovered_ = false;
    unsigned lost_connections_ = 0;  // in a row
    unsigned lanes_lost_ = 0;        // in a row
    Micros stepped_at_ = -1;         // -1: since the last step something has come that may be sent
    Micros next_room_at_ = 0;
    std::string last_error_;
};

}  // namespace outbox
