#include "relay/serve/destination_home.hpp"

#include <sys/epoll.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "core/text.hpp"
#include "relay/serve/report.hpp"
#include "sinks/sink_loader.hpp"
#include "sinks/traced_sink.hpp"

namespace outbox::relay {

// Rows made due in one statement.
static constexpr std::int32_t hurried_at_once = 1000;
// Longest pause between looks at events that are all for other destinations.
static constexpr Micros max_look_pause = milliseconds(16);
// Before new options take effect, events in flight may end, so that they are not sent again.
static constexpr Micros time_to_change = seconds(1);
static constexpr std::string_view lock_not_available = "55P03";
// A crash of the server ends sessions with it. relay_look() and others raise it for a relay that
// has not noticed the crash.
static constexpr std::string_view crash_shutdown = "57P02";
// Class of errors about names and rights, which expressions raise that cannot be evaluated.
static constexpr std::string_view access_rule_violation = "42";
// A statement that evaluates expressions may take this much longer than the expressions.
static constexpr Micros time_beside_expressions = seconds(1);
// Pause before expressions that could not be evaluated are tried again.
static constexpr Micros time_to_look_again = seconds(10);
static constexpr Micros busy_pause = milliseconds(100);
static constexpr Micros shortest_failure_pause = milliseconds(200);
static constexpr Micros max_failure_pause = seconds(10);
// After this many in a row, the relay starts over: perhaps it wants something impossible.
static constexpr unsigned max_refusals = 5;

static Uuid random_token() {
    Uuid token{};
    // Does not fail for so few bytes once the system has started.
    [[maybe_unused]] const ssize_t size = getrandom(token.data(), token.size(), 0);
    return token;
}

DestinationHome::DestinationHome(Process process, DestinationHost& host, SessionPool& sessions,
                                 calls::DestinationRow row)
    : process_(process),
      host_(host),
      sessions_(sessions),
      row_(std::move(row)),
      pauses_(shortest_failure_pause, max_failure_pause, random_seed()),
      read_pauses_(shortest_failure_pause, max_failure_pause, random_seed()),
      relay_(process.clock, stats_, random_seed()),
      reader_(*this, sessions, process.memory),
      token_(random_token()) {}

DestinationHome::~DestinationHome() {
    unwatch_sink();
}

LogPlace DestinationHome::place() const noexcept {
    return {.database = host_.database().name, .destination = row_.name};
}

// While the relay waits for a statement, and after its end, it does not step the sink. The sink's
// descriptor stays ready meanwhile, and would end each wait of the process at once.
void DestinationHome::ready() {
    if (ended_ || (writes_ && !consults_)) {
        is_muted_ = true;
        process_.poller.rewatch(watched_, 0);
    } else {
        due_ = true;
    }
}

void DestinationHome::watch_again() noexcept {
    if (std::exchange(is_muted_, false))
        process_.poller.rewatch(watched_, EPOLLIN);
}

void DestinationHome::watch_sink() {
    is_muted_ = false;
    watched_ = relay_.pipeline().descriptor();
    if (watched_ >= 0)
        process_.poller.watch(watched_, EPOLLIN, *this);
}

void DestinationHome::unwatch_sink() noexcept {
    if (watched_ >= 0)
        process_.poller.forget(std::exchange(watched_, -1));
}

void DestinationHome::stop_relay() noexcept {
    generation_++;
    unwatch_sink();
    reader_.reset();
    relay_.stop();
    writes_ = consults_ = looks_ = found_nothing_ = follows_ = false;
    change_by_ = never;
    if (ending_ == Ending::to_start_over)
        ending_ = Ending::none;
}

const Snapshot* DestinationHome::idle_frontier() const noexcept {
    return state_ == State::serving && found_nothing_ && !looks_ && !committed_ &&
                   !relay_.in_window()
               ? &relay_.frontier()
               : nullptr;
}

bool DestinationHome::is_looking() const noexcept {
    return state_ == State::serving && !paused_ && ending_ == Ending::none && host_.may_send() &&
           relay_.pipeline().has_room();
}

bool DestinationHome::holds_keys() const noexcept {
    return relay_.started() && relay_.pipeline().held_keys() > 0;
}

// -------------------------------------------------------------------------------------------------
// Taking
// -------------------------------------------------------------------------------------------------

void DestinationHome::take_at(Micros when) {
    if (state_ == State::elsewhere && again_at_ == never && ending_ == Ending::none)
        again_at_ = when;
}

void DestinationHome::take() {
    again_at_ = never;
    state_ = State::taking;
    under_way_++;
    host_.run_take(number(), [this, generation = generation_](Answer answer) {
        under_way_--;
        if (generation == generation_)
            taken(std::move(answer));
    });
}

void DestinationHome::taken(Answer answer) {
    state_ = State::elsewhere;
    if (answer.sqlstate == lock_not_available) {
        again_at_ = process_.clock.now() + busy_pause;
        return;
    }
    const bool had_it = held_.has_value();
    held_.reset();
    if (!answer.ok) {
        statement_failed(answer, "could not take the destination");
        again_at_ = process_.clock.now() + pauses_.next();
        return;
    }
    auto taken = calls::taken_of(answer.rows, number());
    if (!taken) {
        if (had_it)
            host_.has_lost(*this);
        return;
    }
    held_ = {.number = number(), .lease = taken->lease};
    relay_.cursor() = std::move(taken->cursor);
    if (!had_it)
        host_.has_taken(*this);
    begin();
}

void DestinationHome::begin() {
    again_at_ = never;
    state_ = State::beginning;
    under_way_++;
    Statement statement = calls::begin(*held_, relay_.cursor(), evaluation());
    statement.done = [this, generation = generation_](Answer answer) {
        under_way_--;
        if (generation == generation_)
            begun(std::move(answer));
    };
    sessions_.run(std::move(statement), SessionPool::Urgency::writes);
}

void DestinationHome::begun(Answer answer) {
    const auto outcome = answer.ok ? calls::outcome_of(answer.rows) : std::nullopt;
    if (!outcome) {
        statement_failed(answer, "could not begin");
        start_over(pauses_.next());
        return;
    }
    switch (*outcome) {
        case calls::Outcome::ok:
            start_relay(calls::begun_of(answer.rows));
            break;
        case calls::Outcome::busy:
            again_at_ = process_.clock.now() + busy_pause;
            break;
        case calls::Outcome::lost:
            start_over(0);
            break;
    }
}

calls::Evaluation DestinationHome::evaluation() const noexcept {
    const bool any =
        !host_.settings().is_utf8 ||
        std::any_of(row_.options.begin(), row_.options.end(), [](const Option& option) {
            return option.name == filter_option.name || option.name == payload_option.name;
        });
    return {any ? host_.settings().expression_timeout + time_beside_expressions : 0};
}

void DestinationHome::start_relay(calls::Begun begun) {
    if (!begun.trouble.empty()) {
        expressions_fail(begun.trouble);
        return;
    }
    trouble_.clear();
    DatabaseSettings settings = host_.settings();
    settings.defaults.local_host = host_.local_host();
    settings.defaults.local_port = host_.local_port();
    Result<Destination> destination =
        make_destination(row_, settings, host_.database(), process_.config);
    if (!destination) {
        misconfigured(destination.error());
        return;
    }
    destination_ = std::move(destination.value());
    Result<std::unique_ptr<Sink>> sink = create_sink({destination_, process_.clock});
    if (!sink) {
        misconfigured(sink.error());
        return;
    }
    Pipeline::Limits limits = settings.limits;
    limits.receipts = destination_.receipts;
    limits.budget = &process_.memory;
    relay_.set_intervals(host_.intervals());
    relay_.start(
        traced(std::move(sink.value()), process_.config.tracing, {destination_, process_.clock}),
        limits);
    reader_.start(number(), row_.patterns, evaluation());
    retries_at_once_ = calls::max_retries;
    reader_.leave_out(std::move(begun.recorded));
    relay_.pipeline().hold_keys(std::move(begun.held_keys));
    paused_ = begun.paused;
    relay_.follow_operator(paused_);
    watch_sink();
    state_ = State::serving;
    committed_ = due_ = true;
    looked_at_ = look_pause_ = next_retry_ = 0;
    pauses_.reset();
    refusals_ = 0;
    process_.log.info(place(), "serves the destination");
}

void DestinationHome::misconfigured(const Error& error) {
    state_ = State::misconfigured;
    trouble_ = error.message;
    if (!error.detail.empty())
        trouble_ += " (" + error.detail + ")";
    process_.log.error(place(), error);
}

// A function or right that is missing may be added later, and the relay is not told.
void DestinationHome::expressions_fail(const std::string& trouble) {
    state_ = State::misconfigured;
    again_at_ = process_.clock.now() + time_to_look_again;
    if (trouble_ != trouble)
        misconfigured({ErrorKind::invalid_value, trouble});
}

void DestinationHome::configure(const calls::DestinationRow& row) {
    if (row == row_)
        return;
    row_ = row;
    if (ending_ != Ending::none)
        return;
    if (state_ == State::serving) {
        ending_ = Ending::to_start_over;
        change_by_ = process_.clock.now() + time_to_change;
        due_ = true;
    } else {
        start_over_if_held();
    }
}

void DestinationHome::start_over_if_held() {
    if (held_ && (state_ == State::serving || state_ == State::misconfigured))
        start_over(0);
}

void DestinationHome::stand_by() noexcept {
    if (state_ != State::serving)
        return;
    relay_.stand_by();
    // One process may have hundreds of destinations.
    relay_.pipeline().free_spare_blocks();
}

void DestinationHome::start_over(Micros pause) {
    stop_relay();
    state_ = State::elsewhere;
    again_at_ = ending_ == Ending::for_good ? never : process_.clock.now() + pause;
    due_ = true;
}

void DestinationHome::release() {
    stop_relay();
    state_ = State::elsewhere;
    again_at_ = never;
    held_.reset();
}

// -------------------------------------------------------------------------------------------------
// Serving
// -------------------------------------------------------------------------------------------------

void DestinationHome::committed() {
    committed_ = due_ = true;
}

void DestinationHome::follow() {
    follows_ = due_ = true;
}

bool DestinationHome::may_look_now(Micros now) const noexcept {
    return committed_ && now >= looked_at_ + look_pause_;
}

Micros DestinationHome::deadline() const noexcept {
    if (ended_)
        return never;
    if (due_)
        return 0;
    if (state_ != State::serving || (writes_ && !consults_))
        return again_at_;
    const auto at = [&](bool committed) {
        return consults_ ? relay_.deadline_beside_question(committed)
                         : std::min(relay_.deadline(committed), change_by_);
    };
    return committed_ && !looks_ ? std::min(at(false), std::max(at(true), looked_at_ + look_pause_))
                                 : at(false);
}

void DestinationHome::turn(Micros now) {
    if (ended_ || now < deadline())
        return;
    due_ = false;
    if (now >= again_at_ && state_ == State::elsewhere)
        take();
    else if (now >= again_at_ && (state_ == State::beginning || state_ == State::misconfigured))
        begin();
    if (state_ == State::serving && !writes_)
        serve(now);
    else if (state_ == State::serving && consults_)
        serve_beside_question(now);
}

bool DestinationHome::may_send() const noexcept {
    return !paused_ && ending_ == Ending::none && host_.may_send();
}

// Runs until the relay wants to wait, or a statement is under way that it must wait for.
void DestinationHome::serve(Micros now) {
    if (now >= change_by_) {
        start_over(0);
        return;
    }
    relay_.pipeline().pause(!may_send());
    if (ending_ == Ending::none)
        take_look_result();
    if (state_ == State::serving && ending_ == Ending::none && relay_.in_window() && looks_)
        fill_block();
    while (state_ == State::serving) {
        if (follows_) {
            follows_ = false;
            write(calls::follow(*held_), &DestinationHome::followed);
            return;
        }
        const Relay::Wish wish = relay_.next(may_look_now(now));
        if (wish == Relay::Wish::wait)
            break;
        if (!act(wish))
            return;
    }
    if (state_ != State::serving)
        return;
    log_condition();
    if (ending_ != Ending::none)
        leave_when_done();
}

void DestinationHome::serve_beside_question(Micros now) {
    relay_.pipeline().pause(!may_send());
    if (ending_ == Ending::none)
        take_look_result();
    if (ending_ == Ending::none && relay_.in_window() && looks_)
        fill_block();
    while (state_ == State::serving &&
           relay_.next_beside_question(may_look_now(now)) == Relay::Wish::read)
        read();
}

// Returns false if the relay must wait for a statement.
bool DestinationHome::act(Relay::Wish wish) {
    switch (wish) {
        case Relay::Wish::read:
            read();
            return true;
        case Relay::Wish::recover:
            write(calls::recover(*held_, relay_), &DestinationHome::recovered);
            return false;
        case Relay::Wish::take_retries:
            write(calls::retries(*held_, token_, relay_.hurries() ? hurried_at_once : 0,
                                 retries_at_once_, evaluation()),
                  &DestinationHome::took_retries);
            return false;
        case Relay::Wish::pause:
            write(calls::pause(*held_, relay_.pipeline().gone()), &DestinationHome::paused);
            return false;
        case Relay::Wish::note:
            write(calls::note(*held_, *relay_.transactions().to_note()), &DestinationHome::noted);
            return false;
        case Relay::Wish::consult:
            write(calls::consult(*held_, relay_.question()), &DestinationHome::consulted);
            consults_ = true;
            return false;
        case Relay::Wish::record:
            write(calls::record(*held_, token_, relay_), &DestinationHome::recorded);
            return false;
        case Relay::Wish::save:
            write(calls::save(*held_, relay_), &DestinationHome::saved);
            return false;
        case Relay::Wish::wait:
            break;
    }
    return true;
}

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

void DestinationHome::read() {
    if (relay_.in_window()) {
        fill_block();
        return;
    }
    committed_ = false;
    looks_ = true;
    found_nothing_ = false;
    looked_at_ = process_.clock.now();
    relay_.reading();
    reader_.look({.from = relay_.frontier(), .settled = relay_.settled_before()});
}

void DestinationHome::take_look_result() {
    const auto found = reader_.look_result();
    if (!found)
        return;
    looks_ = selected_ = false;
    read_pauses_.reset();
    if (found->events == 0) {
        relay_.nothing_found(found->end);
        leave_looking(false);
        return;
    }
    relay_.window_found(found->end, found->events > 1);
    look_pause_ = std::clamp<Micros>(2 * look_pause_, milliseconds(1), max_look_pause);
    host_.has_found(*this);
    fill_block();
}

// The window has no events for this destination. Another one may look for it, too.
void DestinationHome::leave_looking(bool any_events) {
    found_nothing_ = true;
    if (!host_.goes_on_looking(*this))
        stand_by();
    else if (any_events)
        committed_ = true;  // more may follow
}

bool DestinationHome::pass(const calls::Probed& window) {
    if (writes_)
        return false;
    if (window.events == 0) {
        relay_.nothing_found(window.end);
    } else {
        relay_.window_found(window.end, false);
        relay_.block();
        relay_.block_read(true, window.last_position);
    }
    stand_by();
    due_ = true;
    return true;
}

// In a window. `looks_` says that events are on the way.
void DestinationHome::fill_block() {
    looks_ = false;
    EventBlock& block = relay_.block();
    const WindowReader::Filled filled = reader_.fill(block);
    if (!block.empty()) {
        look_pause_ = 0;
        selected_ = true;
        read_pauses_.reset();
        host_.has_selected(*this);
    }
    switch (filled) {
        case WindowReader::Filled::nothing_yet:
            looks_ = true;
            relay_.reading();
            break;
        case WindowReader::Filled::some:
            relay_.block_read(false, reader_.last_position());
            break;
        case WindowReader::Filled::end_of_window:
            relay_.block_read(true, reader_.last_position());
            if (selected_)
                committed_ = true;  // more may follow
            else
                leave_looking(true);
            break;
        case WindowReader::Filled::unreadable:
            statement_failed(
                {.error = "event at position " + std::to_string(reader_.last_position()) +
                          " lacks a value that every event has",
                 .sqlstate = "22004"},
                "could not read the log");
            start_over(pauses_.next());
            break;
    }
}

void DestinationHome::reading_failed(const Answer& answer) {
    statement_failed(answer, "could not read the log");
    if (state_ != State::serving)
        return;
    if (answer.sqlstate == crash_shutdown) {
        start_over(0);
        return;
    }
    if (evaluation().any() && answer.sqlstate.starts_with(access_rule_violation)) {
        start_over(read_pauses_.next());  // relay_begin_expressions() says what is wrong
        return;
    }
    looks_ = false;
    committed_ |= !relay_.in_window();
    const bool takes_less = evaluation().any() && answer.sqlstate == query_canceled;
    relay_.reading_failed(takes_less ? busy_pause : read_pauses_.next());
    due_ = true;
}

void DestinationHome::reading_held() {
    if (state_ != State::serving)
        return;
    looks_ = false;
    committed_ = true;
    relay_.reading_failed(busy_pause);
    due_ = true;
}

// -------------------------------------------------------------------------------------------------
// Writing
// -------------------------------------------------------------------------------------------------

void DestinationHome::write(Statement statement, Taker taker) {
    writes_ = true;
    under_way_++;
    statement.done = [this, taker, generation = generation_](Answer answer) {
        under_way_--;
        if (generation == generation_)
            written(std::move(answer), taker);
    };
    sessions_.run(std::move(statement), SessionPool::Urgency::writes);
}

void DestinationHome::written(Answer answer, Taker taker) {
    writes_ = consults_ = false;
    due_ = true;
    watch_again();
    const auto outcome = answer.ok ? calls::outcome_of(answer.rows) : std::nullopt;
    if (!outcome) {
        write_failed(answer, taker);
        return;
    }
    switch (*outcome) {
        case calls::Outcome::ok:
            pauses_.reset();
            refusals_ = 0;
            (this->*taker)(std::move(answer.rows));
            break;
        case calls::Outcome::busy:
            if (taker == &DestinationHome::consulted)
                relay_.consult_failed();
            relay_.cursor_is_busy();
            break;
        case calls::Outcome::lost:
            start_over(0);
            break;
    }
}

// A server that ends or has crashed says so with these codes.
static bool ends_connection(const std::string& sqlstate) {
    return sqlstate.starts_with("57P") || sqlstate.starts_with("08");
}

// A statement that the server refused had no effect, so the relay asks for it again. If the
// connection was lost, its effect is unknown, and a server that crashed may have lost even
// statements that it had answered.
void DestinationHome::write_failed(const Answer& answer, Taker taker) {
    statement_failed(answer, "could not write");
    if (taker == &DestinationHome::consulted)
        relay_.consult_failed();
    if (answer.sqlstate == query_canceled && taker == &DestinationHome::took_retries &&
        retries_at_once_ > 1) {  // expressions took too long
        retries_at_once_ = std::max(retries_at_once_ / 16, 1);
        relay_.write_later(0);
        return;
    }
    const bool had_no_effect =
        !answer.ok && !answer.connection_lost() && !ends_connection(answer.sqlstate);
    if (had_no_effect && taker != &DestinationHome::followed && ++refusals_ < max_refusals)
        relay_.write_later(pauses_.next());
    else
        start_over(pauses_.next());
}

void DestinationHome::recovered(Rows rows) {
    calls::Begun found = calls::begun_of(rows);
    warn_of_duplicates(found);
    reader_.leave_out(std::move(found.recorded));
    relay_.pipeline().hold_keys(std::move(found.held_keys));
    relay_.recovered();
}

void DestinationHome::paused(Rows) {
    process_.log.warning(place(),
                         "the destination is gone, and is paused: " + relay_.pipeline().gone(), "",
                         "outbox.resume() continues.");
    relay_.paused();
    paused_ = true;
}

void DestinationHome::noted(Rows) {
    relay_.noted();
}

void DestinationHome::consulted(Rows rows) {
    std::optional<EndpointAnswer> answer = calls::answer_of(std::move(rows));
    if (answer) {
        relay_.consulted(std::move(*answer));
        return;
    }
    statement_failed({.error = "an event for an endpoint lacks a value that every event has",
                      .sqlstate = "22004"},
                     "could not read events in trouble");
    start_over(pauses_.next());
}

void DestinationHome::saved(Rows) {
    relay_.saved();  // if the cursor had to be on disk, it is
}

void DestinationHome::recorded(Rows rows) {
    const calls::Recorded recorded = calls::recorded_of(rows);
    for (const std::string& key : recorded.freed_keys)
        relay_.pipeline().free_key(key);
    log_refusals(recorded);
    next_retry_ = recorded.next_retry == never ? never : process_.clock.now() + recorded.next_retry;
    relay_.recorded(next_retry_);
}

void DestinationHome::took_retries(Rows rows) {
    const calls::Retries retries = calls::retries_of(rows);
    if (relay_.hurries())
        relay_.hurried(retries.hurried < hurried_at_once);
    const auto count = static_cast<std::size_t>(rows.size() - 1);
    load_retries(std::move(rows));
    for (const std::string& key : retries.freed_keys)
        relay_.pipeline().free_key(key);
    retries_at_once_ = std::min(2 * retries_at_once_, calls::max_retries);
    next_retry_ = retries.next_retry == never ? never : process_.clock.now() + retries.next_retry;
    relay_.retries_taken(count, next_retry_);
}

void DestinationHome::load_retries(Rows answer) {
    EventRows events;
    if (!events.start(std::move(answer)))
        return;
    const Rows& rows = events.rows();
    const int attempts = rows.column("attempts"), key_failed = rows.column("key_failed");
    const int replayed = rows.column("replayed");
    Pipeline& pipeline = relay_.pipeline();
    EventBlock* block = nullptr;
    for (int row = 1; row < rows.size();) {
        if (block == nullptr)
            block = pipeline.take_block();
        const EventRows::Copied copied = events.copy(row, *block);
        if (copied == EventRows::Copied::block_is_full) {
            pipeline.admit_retries(std::exchange(block, nullptr));
            continue;  // with the same row
        }
        if (copied == EventRows::Copied::yes) {
            Event& event = block->events().back();
            event.has_failed = rows.integer(row, attempts).value_or(0) > 0;
            event.key_failed = rows.boolean(row, key_failed);
            event.replayed = rows.boolean(row, replayed);
        }
        row++;
    }
    if (block != nullptr && block->empty())
        pipeline.put_back(block);
    else if (block != nullptr)
        pipeline.admit_retries(block);
}

void DestinationHome::followed(Rows rows) {
    calls::Begun followed = calls::begun_of(rows);
    paused_ = followed.paused;
    relay_.follow_operator(!may_send());
    relay_.follow_resumes(followed.resumed);
    relay_.pipeline().hold_keys(std::move(followed.held_keys));
    committed_ = true;
}

// -------------------------------------------------------------------------------------------------
// Ending
// -------------------------------------------------------------------------------------------------

void DestinationHome::end() {
    ending_ = Ending::for_good;
    change_by_ = never;
    due_ = true;
    again_at_ = never;
}

bool DestinationHome::has_ended() const noexcept {
    return ended_ || (state_ != State::serving && under_way_ == 0);
}

// Nothing more is sent. When the last outcome has arrived, it is recorded and saved.
void DestinationHome::leave_when_done() {
    if (ended_ || relay_.pipeline().expects_outcomes())
        return;
    if (relay_.has_records())
        act(Relay::Wish::record);
    else if (relay_.must_save_to_leave())
        act(Relay::Wish::save);
    else if (ending_ == Ending::for_good)
        ended_ = true;
    else
        start_over(0);
}

bool DestinationHome::is_drained() const noexcept {
    if (state_ == State::misconfigured || (state_ == State::elsewhere && again_at_ == never))
        return true;
    return state_ == State::serving && !writes_ && idle_frontier() != nullptr &&
           relay_.pipeline().idle() && !relay_.has_records() && next_retry_ > process_.clock.now();
}

// -------------------------------------------------------------------------------------------------
// State
// -------------------------------------------------------------------------------------------------

void DestinationHome::statement_failed(const Answer& answer, std::string_view what) {
    trouble_ = answer.error;
    last_error_ = answer.error;
    last_error_at_ = process_.clock.unix_now();
    if (failure_lines_.take(process_.clock.now()))
        process_.log.warning(place(), what, answer.error);
}

void DestinationHome::warn_of_duplicates(const calls::Begun& found) {
    if (found.doubtful > 0)
        process_.log.warning(
            place(),
            "the destination does not know any more whether it has " +
                std::to_string(found.doubtful) + " events",
            "They are delivered from the database's cursor on, and some may arrive twice.",
            "The offsets of the group \"pg_outbox." + destination_.identity +
                "\" are gone: they expired, or were deleted.");
    if (found.unknown > 0)
        process_.log.warning(
            place(),
            "the destination has " + std::to_string(found.unknown) +
                " transactions that this database does not know of",
            "The database has lost commits, as by a failover or a restored backup. Events of these "
            "transactions may arrive twice.",
            "Synchronous replication prevents this for failovers.");
}

// Logs only some of many refused events; outbox.delivery has them all.
void DestinationHome::log_refusals(const calls::Recorded& recorded) {
    for (const calls::Recorded::Refusal& refusal : recorded.refusals) {
        const auto& records = relay_.pipeline().records();
        const auto record = std::find_if(records.begin(), records.end(), [&](const Record& one) {
            return one.kind == Record::Kind::refused && one.event->position == refusal.position;
        });
        LineBudget& budget = refusal.dead ? dead_letter_lines_ : refusal_lines_;
        if (record == records.end() || !budget.take(process_.clock.now()))
            continue;
        std::string id;
        append_uuid(id, record->event->event_id);
        const std::string detail =
            "Attempt " + std::to_string(refusal.attempts) + "; ordering key \"" +
            std::string(record->event->ordering_key) +
            "\"; lines left out before: " + std::to_string(budget.left_out()) + '.';
        if (refusal.dead)
            process_.log.warning(
                place(), "event " + id + " is a dead letter: " + record->error, detail,
                "outbox.redrive() delivers it again, outbox.discard() gives it up.");
        else
            process_.log.info(place(), "event " + id + " was refused: " + record->error, detail);
    }
}

void DestinationHome::log_condition() {
    if (stats_.failures != std::exchange(failures_seen_, stats_.failures)) {
        last_error_ = relay_.reason();
        last_error_at_ = process_.clock.unix_now();
    }
    if (!relay_.line_is_due())
        return;
    const Condition::Kind kind = relay_.condition();
    if (kind == Condition::Kind::partly) {  // perhaps without a failed attempt
        last_error_ = relay_.reason();
        last_error_at_ = process_.clock.unix_now();
    }
    const std::uint64_t attempts =
        stats_.failures - std::exchange(failures_logged_, stats_.failures);
    const std::string detail =
        "Attempts that failed since the last line: " + std::to_string(attempts) +
        "; changes: " + std::to_string(relay_.condition_log().changes()) + '.';
    if (kind == Condition::Kind::works)
        process_.log.info(place(), "works again", detail);
    else
        process_.log.warning(place(),
                             (kind == Condition::Kind::throttled ? "asks for fewer requests: "
                              : kind == Condition::Kind::partly  ? "failed in part: "
                                                                 : "failed: ") +
                                 relay_.reason(),
                             detail);
}

static std::string name_of(const Relay& relay) {
    const Pipeline& pipeline = relay.pipeline();
    const Condition::Kind kind = relay.condition();
    return pipeline.paused()                    ? "paused"
           : kind == Condition::Kind::failing   ? "backing off"
           : kind == Condition::Kind::throttled ? "throttled"
           : pipeline.unsettled() > 0           ? "delivering"
                                                : "idle";
}

static std::optional<Micros> known(Micros value) {
    return value < 0 ? std::nullopt : std::optional(value);
}

DestinationFigures DestinationHome::figures() {
    DestinationFigures figures;
    figures.name = row_.name;
    figures.state = "elsewhere";
    if (!held_)
        return figures;
    figures.held = true;
    figures.lease = held_->lease;
    figures.position = relay_.cursor().position;
    figures.published = stats_.all_delivered();
    figures.bytes = stats_.bytes;
    figures.failures = stats_.all_failures();
    figures.throttled = stats_.throttled_answers;
    figures.latency_p50 = stats_.latency.percentile(0.50);
    figures.latency_p99 = stats_.latency.percentile(0.99);
    figures.latencies = stats_.latencies.figures();
    figures.state = state_ == State::misconfigured ? "misconfigured" : "starting";
    figures.reason = trouble_;
    if (state_ != State::serving)
        return figures;
    Pipeline& pipeline = relay_.pipeline();
    figures.state = name_of(relay_);
    if (figures.reason.empty() && relay_.condition() != Condition::Kind::works)
        figures.reason = relay_.reason();
    figures.in_flight = pipeline.unsettled();
    figures.held_keys = pipeline.held_keys();
    figures.suspects = pipeline.suspects();
    figures.lanes_down = pipeline.lanes_down();
    figures.failing_since = relay_.failing_since();
    figures.next_attempt = relay_.next_attempt();
    if (const double limit = pipeline.request_limit(); limit > 0)
        figures.request_limit = limit;
    if (const auto oldest = pipeline.oldest())
        figures.oldest_pending_age = std::max<Micros>(process_.clock.unix_now() - *oldest, 0);
    if (pipeline.report(report_)) {
        figures.round_trip_p50 = known(report_.round_trip_p50);
        figures.round_trip_p99 = known(report_.round_trip_p99);
        figures.client_queue = report_.queued;
        figures.connects = report_.connects;
        figures.disconnects = report_.disconnects;
    }
    for (const std::string& line : report_.lines)
        if (library_lines_.take(process_.clock.now()))
            process_.log.info(place(), "client library: " + line);
    return figures;
}

bool DestinationHome::append_report(std::string& out) {
    if (!held_)
        return false;
    const DestinationFigures now = figures();
    if (now.state != state_shown_) {
        state_shown_ = now.state;
        state_since_ = process_.clock.unix_now();
    }
    const std::string& error = trouble_.empty() ? last_error_ : trouble_;
    outbox::relay::append_report(
        out, {.number = number(),
              .state_since = state_since_,
              .read_to = relay_.started() ? relay_.frontier().xmax : 0,
              .oldest = relay_.started() ? relay_.pipeline().oldest() : std::nullopt,
              .last_error = error,
              .last_error_at = last_error_at_,
              .figures = now});
    return true;
}

}  // namespace outbox::relay
