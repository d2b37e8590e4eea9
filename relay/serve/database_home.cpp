#include "relay/serve/database_home.hpp"

#include <sys/random.h>

#include <algorithm>
#include <random>
#include <utility>

#include "core/text.hpp"
#include "relay/configure/check_output.hpp"
#include "relay/configure/fitting.hpp"

namespace outbox::relay {

// A database goes to rest when nothing has been found for this long.
static constexpr Micros rest_after = milliseconds(50);
// Pauses between attempts, while transactions that have enqueued events go on.
static constexpr Micros shortest_rest_pause = milliseconds(100);
static constexpr Micros max_rest_pause = seconds(2);
// Pauses between looks that find nothing.
static constexpr Micros direct_poll_min = milliseconds(1);
static constexpr Micros direct_poll_max = milliseconds(25);
static constexpr Micros pooled_poll_min = milliseconds(50);
static constexpr Micros pooled_poll_max = seconds(1);
static constexpr Micros beat_failure_pause = milliseconds(300);
static constexpr Micros report_interval = seconds(1);
static constexpr Micros upkeep_pause = seconds(1);
// Between probes while events come.
static constexpr Micros probe_pause = milliseconds(10);
// Replicas that start together take turns.
static constexpr Micros pause_between_takes = milliseconds(5);
static constexpr Micros time_to_leave = seconds(2);

static Uuid random_uuid() {
    Uuid id{};
    // Does not fail for so few bytes once the system has started.
    [[maybe_unused]] const ssize_t size = getrandom(id.data(), id.size(), 0);
    id[6] = static_cast<std::uint8_t>((id[6] & 0x0f) | 0x40);
    id[8] = static_cast<std::uint8_t>((id[8] & 0x3f) | 0x80);
    return id;
}

DatabaseHome::DatabaseHome(Process process, const DatabaseConfig& config,
                           const LibpqParameters& environment)
    : process_(process),
      config_(config),
      parameters_(
          connection_parameters(config, environment, "outbox-relay " + process.config.name)),
      id_(random_uuid()),
      control_(*this, process.poller, process.clock, counts_, parameters_, random_seed()),
      sessions_(process.poller, process.clock, counts_, parameters_, config.connections,
                random_seed()),
      lease_(process.config.lease),
      unready_since_(process.clock.now()) {
    control_.open();
}

// Callbacks refer to the homes.
DatabaseHome::~DatabaseHome() {
    sessions_.close();
    control_.close();
}

// -------------------------------------------------------------------------------------------------
// The control connection
// -------------------------------------------------------------------------------------------------

Micros DatabaseHome::control_time_limit() const noexcept {
    return lease_.renewal_time_limit(boot_time(), direct_);
}

void DatabaseHome::run(Call call, void (DatabaseHome::*done)(Answer)) {
    run({.call = std::move(call),
         .done = [this, done](Answer answer) { (this->*done)(std::move(answer)); }});
}

void DatabaseHome::run(Statement statement) {
    statement.call.time_limit = control_time_limit();
    control_queue_.push_back(std::move(statement));
    if (control_.state() == Connection::State::idle)
        connection_ready(control_);
}

void DatabaseHome::connection_ready(Connection& connection) {
    if (!control_queue_.empty()) {
        Statement statement = std::move(control_queue_.front());
        control_queue_.pop_front();
        connection.run(std::move(statement));
    } else if (!greeted_ && !loading_) {
        greet();
    }
}

void DatabaseHome::connection_lost(Connection& connection) {
    trouble_ = connection.failure();
    if (trouble_lines_.take(process_.clock.now()))
        process_.log.warning({.database = config_.name}, "no connection to the database",
                             connection.failure());
    auto queue = std::exchange(control_queue_, {});
    for (Statement& statement : queue)
        statement.done({.error = connection.failure()});
    if (ready_)
        unready_since_ = process_.clock.now();
    ready_ = loading_ = greeted_ = false;
    resting_ = holds_wake_lock_ = false;
    beat_under_way_ = false;
    if (direct_)
        lose_all();
    if (leaving_)
        ended_ = true;
    else
        connection.open();
}

// The locks of the session are gone. If the server crashed, commits that it had answered, but not
// written to disk, are gone as well. Then relays must not save what they have in memory.
void DatabaseHome::lose_all() {
    lease_.lose();
    for (const auto& home : homes_)
        if (home->held())
            home->start_over(0);
}

void DatabaseHome::control_failed(const Answer& answer) {
    if (answer.connection_lost())
        return;  // connection_lost() follows
    trouble_ = answer.error;
    lacks_rights_ = answer.sqlstate == "42501";
    if (lacks_rights_)
        trouble_ += "; outbox.grant_relay() gives the role its rights";
    if (trouble_lines_.take(process_.clock.now()))
        process_.log.warning({.database = config_.name}, "the database refuses a statement",
                             trouble_);
    loading_ = false;
    beat_not_before_ = process_.clock.now() + beat_failure_pause;
}

void DatabaseHome::greet() {
    loading_ = true;
    host_ = control_.host() != nullptr ? control_.host() : "";
    port_ = control_.port() != nullptr ? control_.port() : "";
    run(calls::who_am_i(), &DatabaseHome::take_who_am_i);
}

void DatabaseHome::take_who_am_i(Answer answer) {
    if (answer.ok && !config_.trusted)
        if (const auto power = answer.rows.text(0, 0))
            answer = {.error = in_one_line(too_powerful(config_, control_.user(), *power)),
                      .sqlstate = "28000"};
    if (answer.ok && answer.rows.text(0, 1) == "true")
        answer = {.error = in_one_line(is_standby()), .sqlstate = "25006"};
    if (!answer.ok) {
        control_failed(answer);
        return;
    }
    const bool was_direct = direct_;
    direct_ = control_.keeps_session();
    set_intervals();
    if (was_direct) {
        id_ = random_uuid();
        for (const auto& home : homes_)
            home->release();
    }
    if (direct_)
        run(calls::listen(), &DatabaseHome::take_listening);
    else
        load();
}

void DatabaseHome::set_intervals() {
    const bool notified = direct_ && settings_.notifies;
    intervals_.poll_min = config_.poll_min.value_or(direct_ ? direct_poll_min : pooled_poll_min);
    intervals_.poll_max =
        std::max(config_.poll_max.value_or(notified ? direct_poll_max : pooled_poll_max),
                 intervals_.poll_min);
}

void DatabaseHome::take_listening(Answer answer) {
    if (!answer.ok)
        control_failed(answer);
    else
        load();
}

void DatabaseHome::load() {
    loading_ = true;
    run(calls::settings(), &DatabaseHome::take_settings);
    run(calls::destinations(), &DatabaseHome::take_destinations);
}

void DatabaseHome::take_settings(Answer answer) {
    if (!answer.ok) {
        control_failed(answer);
        return;
    }
    const DatabaseSettings read = read_settings(calls::settings_of(answer.rows));
    const std::optional<Error> problem = version_problem(read.version);
    fits_ = !problem;
    if (problem) {
        control_failed({.error = in_one_line(*problem), .sqlstate = "0A000"});
        leave_alone();
    }
    if (read == settings_)
        return;
    settings_ = read;
    intervals_.save = settings_.save_interval;
    set_intervals();
    for (const auto& home : homes_)
        home->start_over_if_held();
}

// pg_outbox has been updated while it was served.
void DatabaseHome::leave_alone() {
    greeted_ = false;
    if (!std::exchange(ready_, false))
        return;
    unready_since_ = process_.clock.now();
    lose_all();
}

void DatabaseHome::take_destinations(Answer answer) {
    if (!fits_) {
        loading_ = false;
        return;
    }
    if (!answer.ok) {
        control_failed(answer);
        return;
    }
    loading_ = false;
    greeted_ = true;
    outdated_ = false;
    const auto rows = calls::destinations_of(answer.rows);
    for (const calls::DestinationRow& row : rows) {
        if (!config_.serves(row.name))
            continue;
        if (DestinationHome* home = find(row.number))
            home->configure(row);
        else
            homes_.push_back(std::make_unique<DestinationHome>(
                process_, static_cast<DestinationHost&>(*this), sessions_, row));
    }
    for (auto& home : homes_) {
        const bool exists = std::any_of(rows.begin(), rows.end(), [&](const auto& row) {
            return row.number == home->number() && config_.serves(row.name);
        });
        if (exists)
            continue;
        home->release();
        if (scout_ == home.get())
            scout_ = nullptr;
        gone_.push_back(std::move(home));
    }
    std::erase(homes_, nullptr);
    beat_now_ = true;
}

void DatabaseHome::remove_gone() {
    std::erase_if(gone_, [](const auto& home) { return home->is_deletable(); });
}

// -------------------------------------------------------------------------------------------------
// Beats
// -------------------------------------------------------------------------------------------------

DestinationHome* DatabaseHome::find(std::int32_t number) noexcept {
    const auto home = std::find_if(homes_.begin(), homes_.end(), [&](const auto& one) {
        return one != nullptr && one->number() == number;
    });
    return home == homes_.end() ? nullptr : home->get();
}

Micros DatabaseHome::beat_due() const noexcept {
    if (!control_.is_open() || !greeted_ || beat_under_way_ || leaving_)
        return never;
    const Micros due = beat_now_ ? 0 : process_.clock.now() + (lease_.renew_at() - boot_time());
    return std::max(due, beat_not_before_);
}

void DatabaseHome::beat(bool rest) {
    asked_ = {.id = id_,
              .name = process_.config.name,
              .version = OUTBOX_VERSION,
              .lease = lease_.length(),
              .direct = direct_,
              .rest = rest,
              .identity = config_.identity};
    for (const auto& home : homes_) {
        if (const auto& held = home->held()) {
            asked_.held.push_back(held->number);
            asked_.leases.push_back(held->lease);
        }
        if (const Snapshot* frontier = home->idle_frontier()) {
            asked_.idle.push_back(home->number());
            asked_.frontiers.push_back(frontier->to_string());
        }
    }
    beat_now_ = false;
    beat_under_way_ = true;
    beat_asked_at_ = boot_time();
    run(calls::beat(asked_), &DatabaseHome::take_beat);
}

void DatabaseHome::take_beat(Answer answer) {
    beat_under_way_ = false;
    const auto beat = answer.ok ? calls::beat_of(answer.rows) : std::nullopt;
    if (!beat) {
        control_failed(answer);
        return;
    }
    const bool held = may_send();
    lease_.renewed(beat_asked_at_);
    renewals_++;
    renewed_at_ = process_.clock.now();
    trouble_.clear();
    if (!std::exchange(ready_, true)) {
        process_.log.info(
            {.database = config_.name}, direct_ ? "connected" : "connected through a pooler",
            "pg_outbox " + settings_.version + ", edition " + settings_.edition + '.');
        maintains_ = true;  // until the database says that its keeper does
        maintain_at_ = 0;
    }
    follow_beat(*beat);
    if (!held)
        let_all_look();
}

// Held keys may be free again, which a beat does not tell.
bool DatabaseHome::operator_acted(const DestinationHome& home,
                                  const calls::BeatAnswer& answer) const {
    const bool paused = std::count(answer.paused.begin(), answer.paused.end(), home.number()) > 0;
    if (paused != home.is_paused() || home.holds_keys())
        return true;
    const std::size_t place = static_cast<std::size_t>(
        std::find(asked_.held.begin(), asked_.held.end(), home.number()) - asked_.held.begin());
    return place < answer.resumed.size() && answer.resumed[place] != home.resumed();
}

void DatabaseHome::follow_beat(const calls::BeatAnswer& answer) {
    // The first time too: something may have changed since the connection was greeted.
    outdated_ |= configuration_ != answer.configuration;
    configuration_ = answer.configuration;
    if (outdated_ && !loading_)
        load();
    if (std::exchange(copy_, answer.copy) != answer.copy && !answer.copy.empty())
        process_.log.warning({.database = config_.name},
                             "nothing is delivered: " + printable(answer.copy),
                             "If it is to deliver, and the original does not any more, call "
                             "outbox.claim_identity().");
    for (std::size_t i = 0; i < asked_.held.size(); i++) {
        DestinationHome* const home = find(asked_.held[i]);
        const bool is_lost = std::count(answer.lost.begin(), answer.lost.end(), asked_.held[i]) > 0;
        // It may have been taken again meanwhile.
        if (is_lost && home != nullptr && home->held() && home->held()->lease == asked_.leases[i])
            home->start_over(0);
    }
    if (!ends_)
        take_free(answer.free);
    if (!direct_)  // nothing notifies the process of operators
        for (const auto& home : homes_)
            if (home->held() && operator_acted(*home, answer))
                home->follow();
    if (!answer.work.empty())
        maintain_soon(upkeep_pause);
    for (const std::int32_t number : answer.work)
        if (DestinationHome* home = find(number))
            wake_home(*home);
    if (asked_.rest) {
        holds_wake_lock_ |= answer.holds_lock;
        if (std::exchange(resting_, answer.resting) && !resting_)
            wake_all();
        rest_pause_ =
            resting_ ? 0 : std::clamp(2 * rest_pause_, shortest_rest_pause, max_rest_pause);
        rest_not_before_ = process_.clock.now() + rest_pause_;
        if (resting_)
            for (const auto& home : homes_)
                home->stand_by();
    }
    if (resting_ && !answer.work.empty())
        wake();
}

// In a random order and with pauses, so that replicas share the destinations.
void DatabaseHome::take_free(std::vector<std::int32_t> free) {
    static thread_local std::minstd_rand random(static_cast<unsigned>(random_seed()));
    std::shuffle(free.begin(), free.end(), random);
    Micros when = process_.clock.now();
    for (const std::int32_t number : free)
        if (DestinationHome* home = find(number)) {
            home->take_at(when);
            when += static_cast<Micros>(random() % (2 * pause_between_takes));
        }
}

void DatabaseHome::run_take(std::int32_t number, std::function<void(Answer)> done) {
    if (!ready_) {  // the session will have another id
        done({.error = "no connection to the database"});
        return;
    }
    run({.call = calls::take(id_, number, direct_), .done = std::move(done)});
}

bool DatabaseHome::may_send() const noexcept {
    return lease_.holds(boot_time());
}

void DatabaseHome::has_taken(DestinationHome&) {
    takeovers_++;
}

void DatabaseHome::has_lost(DestinationHome& home) {
    losses_++;
    process_.log.warning({.database = config_.name, .destination = home.name()},
                         "another relay has taken over");
    if (direct_ && control_.is_open())
        run(calls::release_destination_lock(home.number()), &DatabaseHome::control_failed_if);
}

// -------------------------------------------------------------------------------------------------
// Rest
// -------------------------------------------------------------------------------------------------

void DatabaseHome::has_found(DestinationHome& home) {
    found_at_ = process_.clock.now();
    rest_pause_ = 0;
    maintain_soon(upkeep_pause);
    if (resting_)
        wake();
    for (const auto& other : homes_)
        if (other.get() != &home)
            wake_home(*other);
}

// The destination looks again in any case, so it can look for all.
void DatabaseHome::has_selected(DestinationHome& home) {
    scout_ = &home;
}

bool DatabaseHome::goes_on_looking(DestinationHome& home) {
    if (resting_)
        return false;
    if (scout_ == nullptr || !scout_->is_looking())
        scout_ = &home;
    return scout_ == &home;
}

Micros DatabaseHome::rest_due() const noexcept {
    if (!direct_ || !settings_.notifies || !ready_ || resting_ || ends_ || beat_under_way_ ||
        loading_ || !control_.is_open() || process_.config.once)
        return never;
    // The beat must probe all of them once it has the wake lock: a look that is under way may have
    // missed what was committed just before.
    for (const auto& home : homes_)
        if (home->is_looking() && home->idle_frontier() == nullptr)
            return never;
    return std::max(found_at_ + rest_after, rest_not_before_);
}

// One destination must look, unless the database is at rest.
void DatabaseHome::look_after_rest(Micros now) {
    if (resting_ || ends_)
        return;
    if (scout_ == nullptr || !scout_->is_looking()) {
        const auto home = std::find_if(homes_.begin(), homes_.end(),
                                       [](const auto& one) { return one->is_looking(); });
        scout_ = home == homes_.end() ? nullptr : home->get();
        if (scout_ != nullptr)
            scout_->committed();
    }
    if (now >= rest_due())
        beat(!holds_wake_lock_);
}

void DatabaseHome::wake() {
    resting_ = false;
    scout_ = nullptr;
    found_at_ = process_.clock.now();
    rest_not_before_ = 0;
    if (std::exchange(holds_wake_lock_, false))
        run(calls::wake(id_), &DatabaseHome::control_failed_if);
}

void DatabaseHome::let_all_look() {
    for (const auto& home : homes_)
        home->committed();
}

// One destination looks, and one probe asks for all others.
void DatabaseHome::wake_all() {
    for (const auto& home : homes_)
        wake_home(*home);
}

void DatabaseHome::wake_home(DestinationHome& home) {
    const bool is_probed = home.idle_frontier() != nullptr || home.looks_now();
    if (is_probed && &home != scout_)
        probe_wanted_ = true;
    else
        home.committed();
}

void DatabaseHome::notified(const std::string& payload) {
    if (!ready_)
        return;
    maintain_soon(payload == "operate" ? 0 : upkeep_pause);
    if (payload == "operate") {
        beat_now_ = true;
        for (const auto& home : homes_)
            if (home->held())
                home->follow();
        return;
    }
    if (payload == "rest") {
        beat_now_ |= resting_ && !holds_wake_lock_;
        return;
    }
    if (resting_)
        wake();
    wake_all();
}

// If one of these statements fails, nothing else has to be done.
void DatabaseHome::control_failed_if(Answer answer) {
    if (!answer.ok)
        control_failed(answer);
}

// -------------------------------------------------------------------------------------------------
// Probes
// -------------------------------------------------------------------------------------------------

Micros DatabaseHome::probe_due() const noexcept {
    return probe_wanted_ && !probe_under_way_ && ready_ && !ends_ ? probed_at_ + probe_pause
                                                                  : never;
}

void DatabaseHome::probe() {
    probe_wanted_ = false;
    probed_at_ = process_.clock.now();
    calls::Probe probe;
    for (const auto& home : homes_) {
        probe_wanted_ |= home->looks_now();  // it may look at what was there before
        const Snapshot* frontier = home->idle_frontier();
        if (frontier == nullptr || home.get() == scout_)
            continue;
        probe.numbers.push_back(home->number());
        probe.frontiers.push_back(frontier->to_string());
        for (const std::string& pattern : home->patterns()) {
            probe.patterns.push_back(pattern);
            probe.pattern_of.push_back(home->number());
        }
    }
    if (probe.numbers.empty())
        return;
    probe_under_way_ = true;
    sessions_.run(
        {.call = calls::probe(probe), .done = [this](const Answer& answer) { take_probe(answer); }},
        SessionPool::Urgency::reads);
}

void DatabaseHome::take_probe(const Answer& answer) {
    probe_under_way_ = false;
    if (!answer.ok) {
        let_all_look();
        return;
    }
    const auto probed = calls::probed_of(answer.rows);
    for (const auto& home : homes_) {
        const Snapshot* frontier = home->idle_frontier();
        if (frontier == nullptr || home.get() == scout_)
            continue;
        const auto window = std::find_if(
            probed.begin(), probed.end(),
            [text = frontier->to_string()](const auto& one) { return one.frontier == text; });
        if (window == probed.end())
            probe_wanted_ = true;  // it came too late for this one
        else if (std::find(window->wanted.begin(), window->wanted.end(), home->number()) !=
                 window->wanted.end())
            home->committed();
        else if (!home->pass(*window))
            probe_wanted_ = true;
    }
}

// -------------------------------------------------------------------------------------------------
// Upkeep
// -------------------------------------------------------------------------------------------------

// Reports only what has changed: a database at rest must not be written to.
void DatabaseHome::report() {
    report_at_ = process_.clock.now() + report_interval;
    if (!ready_ || leaving_)
        return;
    std::string text;
    for (const auto& home : homes_) {
        const std::size_t size = text.size();
        text += size == 0 ? "[" : ",";
        if (!home->append_report(text))
            text.resize(size);
    }
    if (text.empty())
        return;
    text += ']';
    if (text == reported_)
        return;
    reported_ = text;
    Statement statement{.call = calls::report(id_, text)};
    statement.done = [this](Answer answer) {
        if (!answer.ok)
            reported_.clear();
    };
    sessions_.run(std::move(statement), SessionPool::Urgency::writes);
}

// Events that come make the log outgrow its segment long before the next call is due.
void DatabaseHome::maintain_soon(Micros pause) {
    if (maintains_)
        maintain_at_ =
            std::min(maintain_at_, std::max(process_.clock.now(), maintained_at_ + pause));
}

void DatabaseHome::maintain() {
    maintain_at_ = never;
    maintaining_ = true;
    Statement statement{.call = calls::maintain()};
    statement.done = [this](Answer answer) {
        maintaining_ = false;
        maintained_at_ = process_.clock.now();
        const std::optional<double> pause = answer.ok ? answer.rows.number(0, 0) : 10.0;
        maintains_ = pause.has_value();
        if (maintains_)
            maintain_soon(static_cast<Micros>(std::clamp(*pause, 0.1, 60.0) * 1e6));
        else
            maintain_at_ = never;
        if (!answer.ok && !answer.connection_lost() && trouble_lines_.take(maintained_at_))
            process_.log.warning({.database = config_.name}, "could not maintain the log",
                                 answer.error);
    };
    sessions_.run(std::move(statement), SessionPool::Urgency::writes);
}

// -------------------------------------------------------------------------------------------------
// The loop
// -------------------------------------------------------------------------------------------------

// After a failure. A new connection is greeted at once.
Micros DatabaseHome::greeting_due() const noexcept {
    const bool waits = control_.state() == Connection::State::idle && !greeted_ && !loading_;
    return waits ? beat_not_before_ : never;
}

Micros DatabaseHome::deadline() const noexcept {
    if (ended_)
        return never;
    Micros earliest =
        std::min({control_.deadline(), sessions_.deadline(), beat_due(), rest_due(), greeting_due(),
                  probe_due(), leave_by_,
                  ready_ ? std::min(report_at_, maintaining_ ? never : maintain_at_) : never});
    for (const auto& home : homes_)
        earliest = std::min(earliest, home->deadline());
    return earliest;
}

void DatabaseHome::step(Micros now) {
    if (ended_)
        return;
    control_.step(now);
    sessions_.step(now);
    if (now >= greeting_due())
        greet();
    if (now >= beat_due())
        beat(resting_ && !holds_wake_lock_);
    look_after_rest(now);
    if (now >= probe_due())
        probe();
    for (std::size_t i = 0; i < homes_.size(); i++)
        homes_[i]->turn(now);
    if (!gone_.empty())
        remove_gone();
    if (now >= report_at_)
        report();
    if (ready_ && !maintaining_ && now >= maintain_at_)
        maintain();
    if (ends_)
        leave(now);
}

void DatabaseHome::end() {
    if (ends_)
        return;
    ends_ = true;
    leave_by_ = process_.clock.now() + process_.config.shutdown_timeout;
    for (const auto& home : homes_)
        home->end();
}

void DatabaseHome::leave(Micros now) {
    const bool done = std::all_of(homes_.begin(), homes_.end(),
                                  [](const auto& home) { return home->has_ended(); });
    if (leaving_) {
        ended_ |= now >= leave_by_;
        return;
    }
    if (!done && now < leave_by_)
        return;
    leaving_ = true;
    leave_by_ = now + time_to_leave;
    if (!ready_ || !control_.is_open()) {
        ended_ = true;
        return;
    }
    run(calls::leave(id_), &DatabaseHome::take_leave);
}

void DatabaseHome::take_leave(Answer) {
    ended_ = true;
}

bool DatabaseHome::is_drained() const noexcept {
    return ready_ && !loading_ && !beat_now_ && !beat_under_way_ &&
           std::all_of(homes_.begin(), homes_.end(),
                       [](const auto& home) { return home->is_drained(); });
}

bool DatabaseHome::has_failed() const noexcept {
    return lacks_rights_ ||
           (!ready_ && !trouble_.empty() &&
            process_.clock.now() > unready_since_ + Connection::connect_time_limit);
}

DatabaseFigures DatabaseHome::figures() {
    DatabaseFigures figures{.name = config_.name,
                            .edition = settings_.edition,
                            .version = settings_.version,
                            .ready = ready_ && may_send(),
                            .pooled = ready_ && !direct_,
                            .resting = resting_,
                            .trouble = trouble_,
                            .connections = sessions_.open_connections() + control_.is_open(),
                            .connects = counts_.connects,
                            .disconnects = counts_.disconnects,
                            .statements = counts_.statements,
                            .renewals = renewals_,
                            .takeovers = takeovers_,
                            .losses = losses_,
                            .renewed_at = renewed_at_,
                            .destinations = {}};
    for (const auto& home : homes_)
        figures.destinations.push_back(home->figures());
    return figures;
}

}  // namespace outbox::relay
