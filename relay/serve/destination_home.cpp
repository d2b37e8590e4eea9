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
      home_(relay_, process.clock, random_token()),
      reader_(*this, sessions, process.memory) {}

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
    return state_ == State::serving && !home_.paused() && ending_ == Ending::none &&
           host_.may_send() && relay_.pipeline().has_room();
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
    auto taken = calls::taken_of(answer.rows);
    if (!taken) {
        if (had_it)
            host_.has_lost(*this);
        return;
    }
    held_ = {.number = number(), .lease = taken->lease, .only_ascii = !host_.settings().is_utf8};
    relay_.cursor() = std::move(taken->cursor);
    if (!had_it)
        host_.has_taken(*this);
    begin();
}

void DestinationHome::begin() {
    again_at_ = never;
    state_ = State::beginning;
    under_way_++;
    sessions_.run({.call = calls::begin(*held_, relay_.cursor(), evaluation()),
                   .done =
                       [this, generation = generation_](Answer answer) {
                           under_way_--;
                           if (generation == generation_)
                               begun(std::move(answer));
                       }},
                  SessionPool::Urgency::writes);
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
    return {.any = any,
            .time_limit = any ? host_.settings().expression_timeout + time_beside_expressions : 0};
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
    home_.set_identity(destination_.identity);
    home_.begun(std::move(begun));
    reader_.leave_out(std::move(home_.recorded()));
    relay_.follow_operator(home_.paused());
    watch_sink();
    state_ = State::serving;
    committed_ = due_ = true;
    looked_at_ = look_pause_ = 0;
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

void DestinationHome::expressions_fail(const std::string& trouble) {
    state_ = State::misconfigured;
    again_at_ = process_.clock.now() + Home::look_again;
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
    return !home_.paused() && ending_ == Ending::none && host_.may_send();
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
            write(calls::follow(*held_), std::nullopt);
            return;
        }
        const Relay::Wish wish = relay_.next(may_look_now(now));
        if (wish == Relay::Wish::wait)
            break;
        if (wish != Relay::Wish::read) {
            write(wish);
            return;
        }
        read();
    }
    if (state_ != State::serving)
        return;
    look_at_condition();
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
    if (evaluation().any && answer.sqlstate.starts_with(access_rule_violation)) {
        start_over(read_pauses_.next());  // relay_begin_expressions() says what is wrong
        return;
    }
    looks_ = false;
    committed_ |= !relay_.in_window();
    const bool takes_less = evaluation().any && answer.sqlstate == query_canceled;
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

void DestinationHome::write(Relay::Wish wish) {
    write(home_.call(wish, *held_, evaluation()), wish);
    consults_ = wish == Relay::Wish::consult;
}

// Without a wish it is a call to follow operators.
void DestinationHome::write(calls::Call call, std::optional<Relay::Wish> wish) {
    writes_ = true;
    under_way_++;
    sessions_.run({.call = std::move(call),
                   .done =
                       [this, wish, generation = generation_](Answer answer) {
                           under_way_--;
                           if (generation == generation_)
                               written(std::move(answer), wish);
                       }},
                  SessionPool::Urgency::writes);
}

void DestinationHome::written(Answer answer, std::optional<Relay::Wish> wish) {
    writes_ = consults_ = false;
    due_ = true;
    watch_again();
    const auto outcome = answer.ok ? calls::outcome_of(answer.rows) : std::nullopt;
    if (!outcome) {
        write_failed(answer, wish);
        return;
    }
    switch (*outcome) {
        case calls::Outcome::ok:
            pauses_.reset();
            refusals_ = 0;
            wish ? answered(*wish, std::move(answer.rows)) : followed(answer.rows);
            break;
        case calls::Outcome::busy:
            home_.busy(wish.value_or(Relay::Wish::wait));
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
void DestinationHome::write_failed(const Answer& answer, std::optional<Relay::Wish> wish) {
    statement_failed(answer, "could not write");
    if (wish && home_.failed(*wish, answer.sqlstate == query_canceled)) {
        relay_.write_later(0);
        return;
    }
    const bool had_no_effect =
        !answer.ok && !answer.connection_lost() && !ends_connection(answer.sqlstate);
    if (had_no_effect && wish && ++refusals_ < max_refusals)
        relay_.write_later(pauses_.next());
    else
        start_over(pauses_.next());
}

void DestinationHome::answered(Relay::Wish wish, Rows rows) {
    const std::optional<Error> error = home_.answered(wish, std::move(rows));
    tell_notices();
    if (error) {
        statement_failed({.error = error->message, .sqlstate = "22004"},
                         "could not read events in trouble");
        start_over(pauses_.next());
    }
    if (wish == Relay::Wish::recover)
        reader_.leave_out(std::move(home_.recorded()));
}

void DestinationHome::followed(const Rows& rows) {
    home_.followed(calls::begun_of(rows));
    relay_.follow_operator(!may_send());
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
        write(Relay::Wish::record);
    else if (relay_.must_save_to_leave())
        write(Relay::Wish::save);
    else if (ending_ == Ending::for_good)
        ended_ = true;
    else
        start_over(0);
}

bool DestinationHome::is_drained() const noexcept {
    if (state_ == State::misconfigured || (state_ == State::elsewhere && again_at_ == never))
        return true;
    return state_ == State::serving && !writes_ && idle_frontier() != nullptr &&
           relay_.pipeline().idle() && !relay_.has_records() &&
           home_.next_retry() > process_.clock.now();
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

void DestinationHome::look_at_condition() {
    if (home_.look_at_condition()) {
        last_error_ = relay_.reason();
        last_error_at_ = process_.clock.unix_now();
    }
    tell_notices();
}

void DestinationHome::tell_notices() {
    for (const Notice& notice : home_.take_notices())
        if (notice.is_warning)
            process_.log.warning(place(), notice.text, notice.detail, notice.hint);
        else
            process_.log.info(place(), notice.text, notice.detail);
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
