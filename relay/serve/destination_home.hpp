// The home, outside of the server, of the relay of one destination. lib/core/relay/relay.hpp has
// the relay, bgworker/relay/relay_main.cpp the home inside the server.
//
//   elsewhere      another process serves the destination, or none; or it is about to be taken over
//   taking         relay_take() is under way: it returns the token and the cursor
//   beginning      relay_begin() is under way: it returns what the relay must know before it reads
//   serving        the relay runs
//   misconfigured  this process has the destination, but cannot serve it as it is configured
//
// Every wish of the relay becomes one statement, in the SessionPool. At most one of them writes at
// a time (`writes_`). Until its answer the relay is not asked for another wish, because the state
// that the statement describes must not change. Reading goes on all the time (Relay::reading()),
// and sending goes on while the statement is a question about endpoints
// (Relay::next_beside_question()).
//
// The token is the right to write. An answer "lost" means that the database has another token: an
// operator moved the cursor, the destination was renamed, or another process took over. Then the
// relay stops, and the destination is taken again if it still belongs to this process. The same
// happens when a connection is lost while a statement writes, because its outcome is unknown: with
// a new token, the old statement can have no late effect.
//
// Statements keep a pointer to this object until they are answered. So a home that is removed stays
// alive until is_deletable(), and ignores answers from before it stopped (`generation_`).
//
// Nothing is sent unless the host allows it (relay/serve/lease.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/backoff.hpp"
#include "core/relay/home.hpp"
#include "core/relay/relay.hpp"
#include "relay/observe/figures.hpp"
#include "relay/observe/log.hpp"
#include "relay/serve/destination_settings.hpp"
#include "relay/serve/window_reader.hpp"

namespace outbox::relay {

// Shared by all of the process.
struct Process {
    const RelayConfig& config;
    Log& log;
    Poller& poller;
    const Clock& clock;
    MemoryBudget& memory;  // for events of all destinations
};

class DestinationHome;

// The database of a destination, for its home.
struct DestinationHost {
    virtual const DatabaseConfig& database() const noexcept = 0;
    virtual const DatabaseSettings& settings() const noexcept = 0;
    virtual const Relay::Intervals& intervals() const noexcept = 0;
    virtual std::string local_host() const = 0;
    virtual std::string local_port() const = 0;
    // Takes the destination, in the session that holds locks.
    virtual void run_take(std::int32_t number, std::function<void(Answer)> done) = 0;
    // Returns true while this process may send.
    virtual bool may_send() const noexcept = 0;

    virtual void has_taken(DestinationHome& home) = 0;
    virtual void has_lost(DestinationHome& home) = 0;
    // A look of the destination has found events, of any destination.
    virtual void has_found(DestinationHome& home) = 0;
    // The destination has read events of its own.
    virtual void has_selected(DestinationHome& home) = 0;
    // The destination has found nothing for itself. Returns true if it must go on looking, and
    // false if another one does.
    virtual bool goes_on_looking(DestinationHome& home) = 0;

  protected:
    ~DestinationHost() = default;
};

class DestinationHome final : private WindowReader::Owner, private Watcher {
  public:
    enum class State { elsewhere, taking, beginning, serving, misconfigured };
    // Lets events in flight end, and saves the cursor. Then the destination starts over with new
    // options, or the program ends.
    enum class Ending { none, to_start_over, for_good };

    DestinationHome(Process process, DestinationHost& host, SessionPool& sessions,
                    calls::DestinationRow row);
    ~DestinationHome();
    DestinationHome(const DestinationHome&) = delete;
    DestinationHome& operator=(const DestinationHome&) = delete;

    std::int32_t number() const noexcept { return row_.number; }
    const std::string& name() const noexcept { return row_.name; }
    State state() const noexcept { return state_; }
    // Set while the token belongs to this process, as far as it knows.
    const std::optional<calls::Held>& held() const noexcept { return held_; }
    const std::vector<std::string>& patterns() const noexcept { return row_.patterns; }
    // Returns the end of the last look, if it found nothing for this destination and nothing has
    // happened since. Otherwise nullptr.
    const Snapshot* idle_frontier() const noexcept;
    // Returns true while a look is under way.
    bool looks_now() const noexcept {
        return state_ == State::serving && looks_ && !relay_.in_window();
    }
    // Returns true if the destination looks again without being told.
    bool is_looking() const noexcept;
    bool is_paused() const noexcept { return home_.paused(); }
    // Calls of outbox.resume() that it has followed.
    std::int64_t resumed() const noexcept { return relay_.cursor().resumed; }
    bool holds_keys() const noexcept;

    // The destination is free, and must be taken at this time.
    void take_at(Micros when);
    // The row may have changed.
    void configure(const calls::DestinationRow& row);
    // The settings have changed.
    void start_over_if_held();
    // Do not look before committed() is called.
    void stand_by() noexcept;
    // A probe found no event of the destination in a window after idle_frontier(). Returns false if
    // this is not certain now.
    bool pass(const calls::Probed& window);
    // There may be new events, retries or decisions of operators.
    void committed();
    void follow();
    // Stops delivering, and gives up the token.
    void release();
    void start_over(Micros pause);
    // Lets what is in flight end, and saves.
    void end();
    bool has_ended() const noexcept;
    // Nothing is left to deliver now.
    bool is_drained() const noexcept;

    // An object with statements under way must not be deleted.
    bool is_deletable() const noexcept { return under_way_ == 0 && reader_.under_way() == 0; }

    Micros deadline() const noexcept;
    void turn(Micros now);

    DestinationFigures figures();
    // Appends the figures as a JSON object for relay_report(). Returns false if it is not ours.
    bool append_report(std::string& out);

  private:
    void ready() override;
    void read_more() override { due_ = true; }
    void reading_failed(const Answer& answer) override;
    void reading_held() override;

    LogPlace place() const noexcept;
    void watch_sink();
    void watch_again() noexcept;
    void unwatch_sink() noexcept;
    void stop_relay() noexcept;

    // Taking.
    void take();
    void taken(Answer answer);
    void begin();
    void begun(Answer answer);
    void start_relay(calls::Begun begun);
    void misconfigured(const Error& error);
    void expressions_fail(const std::string& trouble);
    calls::Evaluation evaluation() const noexcept;

    // Serving.
    void serve(Micros now);
    void serve_beside_question(Micros now);
    bool may_send() const noexcept;
    void take_look_result();
    void read();
    void fill_block();
    void leave_looking(bool any_events);
    bool may_look_now(Micros now) const noexcept;

    void write(Relay::Wish wish);
    void write(calls::Call call, std::optional<Relay::Wish> wish);
    void written(Answer answer, std::optional<Relay::Wish> wish);
    void write_failed(const Answer& answer, std::optional<Relay::Wish> wish);
    void answered(Relay::Wish wish, Rows rows);
    void followed(const Rows& rows);
    void leave_when_done();
    void statement_failed(const Answer& answer, std::string_view what);
    void look_at_condition();
    void tell_notices();

    Process process_;
    DestinationHost& host_;
    SessionPool& sessions_;
    calls::DestinationRow row_;
    State state_ = State::elsewhere;
    std::string trouble_;  // why it is misconfigured, or a statement fails
    std::string state_shown_;
    Micros state_since_ = 0;    // by the time of day
    Micros again_at_ = never;   // when it is taken, or begun
    Micros change_by_ = never;  // when new options take effect at the latest
    Backoff pauses_;            // after failures
    Backoff read_pauses_;       // after failures to read
    unsigned refusals_ = 0;     // of statements that write, in a row

    DeliveryStats stats_;
    Destination destination_;  // outlives the relay's sink, which refers to it
    Relay relay_;
    Home home_;
    WindowReader reader_;
    std::optional<calls::Held> held_;
    int watched_ = -1;
    bool is_muted_ = false;  // the sink is not watched for the moment

    std::size_t under_way_ = 0;     // statements
    std::uint64_t generation_ = 0;  // answers to statements of an earlier one are ignored
    bool writes_ = false;           // a statement that the relay waits for is under way
    bool consults_ = false;         // it is a question about endpoints
    bool looks_ = false;            // a look is under way
    bool found_nothing_ = false;    // by the last look, for this destination
    bool selected_ = false;         // the window has events for it
    bool follows_ = false;          // held keys are to be loaded again
    bool committed_ = false;
    Micros looked_at_ = 0;
    Micros look_pause_ = 0;  // after looks that found only events of others
    Ending ending_ = Ending::none;
    bool ended_ = false;

    bool due_ = false;
    std::string last_error_;
    Micros last_error_at_ = 0;
    LineBudget failure_lines_, library_lines_;
    SinkReport report_;
};

}  // namespace outbox::relay
