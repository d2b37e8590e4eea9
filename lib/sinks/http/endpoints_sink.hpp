// The sink of destinations with endpoints: one relay, thousands of web servers.
//
// Each event is copied, in memory, to every endpoint that takes its topic, and each endpoint has a
// queue, an order and a health of its own: its lane. A batch is confirmed when no lane needs a copy
// of it. core/endpoints.hpp says how the sink and the database agree on what an endpoint has; this
// is the sink's part.
//
//   mode       new events for it             what it sends        what becomes of a request
//   live       are copied into its queue     its queue            confirmed: the copy is released
//                                                                 failed: the copy stays; back-off
//                                                                 refused: the copy stays; it leaves
//   leaving    are undecided                 nothing              the same, and it is told as
//                                                                 `settled` or `refused`
//   behind     are left to the database      what was fetched     confirmed: told as `settled`
//                                                                 refused: told as `refused`
//                                                                 failed: all that was fetched is
//                                                                 dropped, and fetched again later
//   fetching   are undecided                 nothing              none is in flight
//
//   from       to         when
//   live       leaving    ask(), if should_leave(): `fall_back` lists its queue
//   leaving    behind     answered(): its queue is in the database
//   leaving    live       answered(): the database did not let it fall back
//   behind     fetching   ask(), if nothing was left in the sink, nothing is in flight, and
//                         everything about it was told, at the latest by the same question
//   fetching   behind     answered(): with events, or without for now
//   fetching   live       answered(): it has caught up
//
// Undecided events. From ask() to answered() the sink does not know which of the new events are its
// own: those for lanes that are leaving or fetching, and those for endpoints that it does not know
// yet. Their batches are not confirmed, and answered() copies them to the lanes that are live then
// and were not before. A lane that is behind has a cursor before all of them, and finds them in the
// log.
//
// After failed() it is unknown whether the question had an effect. Nothing changes its mode until
// the next answer: lanes that are leaving or fetching are asked about again, undecided events stay
// undecided, and what was told is told again. A second `fall_back` lists what has become undecided
// as well; if the first one had an effect it is ignored, and those events lie after the cursor.
//
// Requests. A request that is in flight when its endpoint falls back goes on. It was listed in
// `fall_back`, so it is told as `settled` or `refused` afterwards, and nothing is fetched before:
// no key can get a later event first. A request does not refer to its event.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/endpoints.hpp"
#include "core/sink.hpp"
#include "sinks/http/endpoint_copies.hpp"
#include "sinks/http/endpoint_directory.hpp"
#include "sinks/http/endpoint_question.hpp"
#include "sinks/http/endpoint_requests.hpp"
#include "sinks/http/endpoint_turns.hpp"

namespace outbox {

class EndpointsSink final : public Sink, public Endpoints {
  public:
    // An endpoint that fails, or has not got its oldest copy, for this long falls back.
    static constexpr Micros patience = seconds(1);
    static constexpr Micros max_lag = seconds(5);
    // An endpoint with more copies falls back if the oldest is older than `patience`.
    static constexpr std::size_t max_queue = 1'000;
    // An endpoint that does not answer falls back after `patience` if this many events are in
    // memory for it or for others, because the relay would soon have to stop reading.
    static constexpr std::size_t many_held = 1'000;
    // No more endpoints fall back because they fail or do not answer: the receivers have an outage.
    static constexpr std::size_t max_troubled = 1'000;

    EndpointsSink(const Destination& destination, const Clock& clock);

    Capabilities capabilities() const noexcept override;
    int descriptor() const noexcept override { return requests_.descriptor(); }
    Micros deadline() const noexcept override;
    void submit(Batch& batch) override;
    void step(Micros now, std::vector<Outcome>& outcomes) override;
    Endpoints* endpoints() noexcept override { return this; }
    bool report(SinkReport& report) override {
        requests_.report(report);
        return false;
    }

    Micros due() const noexcept override;
    void look_again() noexcept override { looks_ = true; }
    void pause(bool paused) noexcept override;
    void forget_waits() override;
    std::size_t in_flight() const noexcept override { return requests_.in_flight(); }
    bool last_event(std::uint64_t& xid, std::int64_t& position) const noexcept override;
    std::string ask(const EndpointPlace& place) override;
    void answered(EndpointAnswer&& answer) override;
    void failed() noexcept override;
    const std::string& left_out() const noexcept override { return left_out_error_; }

  private:
    // A batch that was handed over, and how many of its events have been copied.
    struct Handed {
        EventSource* source;
        std::size_t next = 0;
    };
    // An event that some lanes may still get.
    struct Undecided {
        Event* event;
        EventSource* source;
    };

    // Events for lanes: endpoints_sink.cpp
    void copy_events(Micros now);
    void copy_event(Event& event, EventSource& source, Micros now);
    void offer(EndpointLane& lane, Event& event, EventSource& source, Micros now);
    void add_copy(EndpointLane& lane, Event& event, EventSource& source, Micros now);
    void release_copies(EndpointLane& lane);
    static void forget_copies_in_flight(EndpointLane& lane) noexcept;

    // Turns: endpoints_sink.cpp
    void attend(EndpointLane& lane, Micros now);
    bool can_send(const EndpointLane& lane, Micros now) const noexcept;
    bool should_leave(const EndpointLane& lane, Micros now) const noexcept;
    bool wants_fetch(const EndpointLane& lane, Micros now) const noexcept;
    Micros next_look(const EndpointLane& lane, Micros now) const noexcept;
    void start_requests(bool healthy, Micros now);
    void start_request(EndpointLane& lane, Micros now);

    // Outcomes of requests: endpoints_outcomes.cpp
    void take_ended(Micros now);
    void take_hanging(Micros now);
    void take_outcome(EndpointRequest& request, Micros now);
    void confirmed(EndpointRequest& request);
    void refused(EndpointRequest& request, bool permanent);
    void gone(EndpointRequest& request, Micros now);
    void failed(EndpointRequest& request, Micros now);
    bool is_fault_of_event(EndpointRequest& request);
    void endpoint_failed(EndpointRequest& request, Micros now);
    void drop_fetched(EndpointLane& lane);
    std::deque<EndpointCopy>::iterator copy_of(const EndpointRequest& request);
    void remove_copy(const EndpointRequest& request);
    void put_back(const EndpointRequest& request);

    // Questions: endpoints_questions.cpp
    void to_tell(EndpointLane& lane);
    void to_fetch(EndpointLane& lane);
    void ask_again(EndpointQuestion& question, Micros now);
    void take_undecided(const std::vector<EndpointLane*>& lanes, Micros now);
    void tell_all(EndpointQuestion& question, Micros now);
    void tell(EndpointLane& lane, EndpointQuestion& question, Micros now);
    void tell_health(EndpointLane& lane, EndpointQuestion& question, Micros now);
    void leave(EndpointLane& lane, Micros now);
    bool may_leave(const EndpointLane& lane);
    std::size_t count_troubled();
    void fetch_some(EndpointQuestion& question, Micros now);

    // Answers: endpoints_answers.cpp
    using Rows = std::unordered_map<std::string_view, const EndpointRow*>;
    void was_told(EndpointLane& lane, const Rows& rows);
    bool take_row(EndpointRow& row, Micros now);
    void count_left_out(std::size_t all, const std::string& first);
    void take_row(EndpointLane& lane, EndpointRow&& row, Micros now);
    void drop_what_it_has(EndpointLane& lane);
    bool wants(const EndpointLane& lane, const Event& event);
    void drop_unwanted(EndpointLane& lane);
    void start_anew(EndpointLane& lane);
    void has_changed(EndpointLane& lane, bool starts_anew, Micros now);
    void add_lane(EndpointRow&& row);
    void remove_missing(const Rows& rows);
    void remove_lane(EndpointLane& lane);
    void sweep();
    void take_fetched(EndpointAnswer& answer, Micros now);
    void take_fetched(EndpointLane& lane, EndpointFetched& fetched, EventSource& source,
                      Micros now);
    void is_live(EndpointLane& lane);
    void is_behind(EndpointLane& lane);
    void decide(EndpointLane& lane);
    void end_indecision(Micros now);
    void send_kept(EndpointLane& lane, Micros now);

    const Clock& clock_;
    const EndpointOptions options_;
    EndpointCopies copies_;
    EndpointDirectory directory_;
    std::size_t left_out_ = 0;  // endpoints for which there is no room
    std::string left_out_error_;
    std::vector<std::unique_ptr<EndpointLane>> removed_;  // requests or lists refer to them
    EndpointTurns turns_;
    std::deque<Handed> handed_;  // not all of their events have been copied
    std::vector<Undecided> undecided_;
    std::vector<EventSource*> uncertain_;  // have undecided events, and are complete otherwise
    bool has_last_ = false;
    std::uint64_t last_xid_ = 0;
    std::int64_t last_position_ = 0;
    bool paused_ = false;
    bool moves_ = false;  // step() has something to do at once

    // Questions.
    std::string known_;    // empty if all endpoints are to be listed
    bool listed_ = false;  // the question that is under way asks for all
    bool knows_endpoints_ = false;
    bool looks_ = true;
    bool under_way_ = false;
    bool in_doubt_ = false;  // the last question may have had an effect
    Micros asked_at_ = 0;
    Micros not_before_ = 0;
    Micros tell_at_ = never;
    std::vector<EndpointLane*> to_tell_;
    std::deque<EndpointLane*> to_fetch_;
    std::vector<EndpointLane*> told_;     // by the question that is under way or in doubt
    std::vector<EndpointLane*> fetched_;  // for these it fetches
    std::vector<EndpointLane*> decided_;
    std::optional<std::size_t> troubled_;  // lanes that are not live and fail or do not answer

    std::vector<EndpointRequest*> ended_, hang_;  // scratch space
    EndpointRequests requests_;                   // refers to lanes, so it must be destroyed first
};

}  // namespace outbox
