#include "inbox/sources/pull.hpp"

#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <unordered_set>
#include <utility>

#include "backoff.hpp"
#include "connection.hpp"
#include "core/libpq_limits.hpp"
#include "core/signals.hpp"
#include "core/text.hpp"
#include "core/text_values.hpp"
#include "event_row.hpp"
#include "leases.hpp"
#include "text.hpp"

namespace inbox {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Connect = std::function<outbox::LibpqConnection()>;

static constexpr milliseconds poll_min{5};
static constexpr std::size_t min_answer = 1024 * 1024;
static constexpr const char* lease_lost = "OL001";

static std::string interval(milliseconds time) {
    return std::to_string(time.count()) + " ms";
}

// Uses two connections, so that neither side waits for the other, and workers wait for neither.
//
// Over `fetching_` the thread that calls receive() or seek() fetches, under fetching_mutex_. Over
// `settling_` the housekeeper sends settlements and extends leases; only that thread uses it.
// Workers only change `leases_` under mutex_ and notify the housekeeper. mutex_ is never held while
// a server answers; fetching_mutex_ is, and is always locked first. The housekeeper sends the
// settlement at the front of the queue without a lock, and removes it afterwards only if it is
// still at the front, because a seek may have cleared the queue meanwhile.
class PullSource::Impl {
  public:
    Impl(Connect connect, std::string destination, PullOptions options, Log log);
    ~Impl() { close(milliseconds{0}); }

    const std::string& destination() const { return destination_; }

    void open();
    std::vector<Delivery> receive(std::size_t max_messages, milliseconds wait);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);
    void seek(Time to);
    void interrupt() noexcept { interrupted_.raise(); }
    void close(milliseconds limit) noexcept;

  private:
    bool connect(std::optional<Connection>& connection, const Flag& give_up);
    template <typename Task>
    auto ask(Task task);
    std::vector<Delivery> fetch(std::size_t max_messages);

    void keep_house();
    void settle_and_extend(std::unique_lock<std::mutex>& lock);
    void settle(const Settlement& settlement);
    void extend_all(std::unique_lock<std::mutex>& lock);
    void release_all(std::unique_lock<std::mutex>& lock);
    bool tell(const std::string& statement, const std::vector<Parameter>& parameters,
              Result* result = nullptr);

    const Connect connect_;
    const std::string destination_;
    const std::string source_;
    const PullOptions options_;
    const Log log_;     // called from all threads
    Flag give_up_;      // for settling_
    Flag interrupted_;  // for fetching_

    std::mutex fetching_mutex_;  // locked before mutex_, and held while the server answers
    std::optional<Connection> fetching_;
    milliseconds pause_ = poll_min;

    std::mutex mutex_;  // for the following members
    std::condition_variable changed_;
    Leases leases_;
    bool closing_ = false;
    bool keeping_ = false;  // the housekeeper is running
    std::thread housekeeper_;
    std::optional<Connection> settling_;  // for the housekeeper only
    Clock::time_point extend_at_;
};

PullSource::Impl::Impl(Connect connect, std::string destination, PullOptions options, Log log)
    : connect_(std::move(connect)),
      destination_(std::move(destination)),
      source_("pull:" + destination_),
      options_(options),
      log_(std::move(log)) {
    if (!connect_ || destination_.empty())
        throw std::invalid_argument(
            "inbox::PullSource needs a connection factory and a destination");
    if (options_.lease < milliseconds{100} || options_.max_events < 1 ||
        options_.max_events > 100 || options_.poll_max < milliseconds{1} ||
        options_.max_answer < min_answer)
        throw std::invalid_argument(
            "inbox::PullOptions: lease must be at least 100 ms, max_events from 1 to 100, poll_max "
            "at least 1 ms, max_answer at least 1 MiB");
}

// Returns whether the connection is a new one.
bool PullSource::Impl::connect(std::optional<Connection>& connection, const Flag& give_up) {
    if (connection && connection->is_worn_out())
        connection.reset();
    if (connection)
        return false;
    connection.emplace(connect_(), options_.max_answer, outbox::SessionKind::commands, true,
                       give_up);
    return true;
}

// ------------------------------------------------------------------------------------------------
// Fetching
// ------------------------------------------------------------------------------------------------

// The destination or pg_outbox does not exist, a privilege is missing, or a default of the role
// forbids it.
static bool is_for_good(const DatabaseError& error) {
    const std::string& state = error.sqlstate();
    return state == "42704" || state == "42501" || state == "42883" || state == "3F000" ||
           state == "0A000";
}

// Runs the task over the fetching connection. The caller has locked fetching_mutex_.
template <typename Task>
auto PullSource::Impl::ask(Task task) {
    try {
        connect(fetching_, interrupted_);
        return task(*fetching_);
    } catch (const DatabaseError& error) {
        fetching_.reset();
        throw SourceError(outbox::printable(error.what()), !is_for_good(error));
    } catch (const std::exception& error) {
        fetching_.reset();
        throw SourceError(outbox::printable(error.what()), true);
    }
}

void PullSource::Impl::open() {
    const std::lock_guard fetching(fetching_mutex_);
    fetching_.reset();
    ask([](Connection&) {});
    const std::lock_guard lock(mutex_);
    if (keeping_ || closing_)
        return;
    keeping_ = true;
    const outbox::SignalsBlocked blocked;
    housekeeper_ = std::thread([this] { keep_house(); });
}

std::vector<Delivery> PullSource::Impl::receive(std::size_t max_messages, milliseconds wait) {
    const auto until = Clock::now() + wait;
    for (;;) {
        std::vector<Delivery> fetched = fetch(max_messages);
        if (!fetched.empty()) {
            pause_ = poll_min;
            return fetched;
        }
        std::unique_lock lock(mutex_);
        changed_.wait_until(lock, std::min(until, Clock::now() + pause_),
                            [this] { return closing_; });
        if (closing_ || Clock::now() >= until)
            return {};
        pause_ = std::min(pause_ * 2, options_.poll_max);
    }
}

std::vector<Delivery> PullSource::Impl::fetch(std::size_t max_messages) {
    const std::size_t max = std::min<std::size_t>(max_messages, options_.max_events);
    // Held until leases_ has the lease. After a seek in between, it would have a lease that is
    // never extended.
    const std::lock_guard fetching(fetching_mutex_);
    const EventRows rows = ask([&](Connection& connection) {
        return EventRows(connection.run(
            Whose::own, "SELECT * FROM outbox.fetch($1, $2::integer, $3::interval)",
            {destination_, std::to_string(max), interval(options_.lease)}, Format::binary));
    });
    std::vector<Delivery> deliveries;
    deliveries.reserve(rows.count());
    for (int row = 0; row < rows.count(); row++) {
        Delivery& delivery = deliveries.emplace_back();
        delivery.event = rows.event(row);
        delivery.source = source_;
        delivery.message_id = std::to_string(rows.position(row));
        delivery.published_at = delivery.event.occurred_at;
        delivery.handle = row == 0 ? rows.uuid(row, "token") : deliveries.front().handle;
        delivery.size = rows.size(row);
    }
    if (!deliveries.empty()) {
        const std::lock_guard lock(mutex_);
        leases_.add(deliveries.front().handle, deliveries.size());
    }
    return deliveries;
}

// A seek ends all leases, so nothing is left to settle.
void PullSource::Impl::seek(Time to) {
    const std::lock_guard fetching(fetching_mutex_);
    ask([&](Connection& connection) {
        connection.run(Whose::own,
                       "SELECT outbox.seek($1, $2::timestamptz, why => 'a consumer was reset')",
                       {destination_, time_literal(to).value_or("epoch")});
    });
    const std::lock_guard lock(mutex_);
    leases_.forget_all();
}

// ------------------------------------------------------------------------------------------------
// Settling
// ------------------------------------------------------------------------------------------------

void PullSource::Impl::ack(std::span<const Delivery> deliveries) {
    const std::lock_guard lock(mutex_);
    leases_.ack(deliveries);
    if (!leases_.settlements().empty())
        changed_.notify_all();
}

void PullSource::Impl::nack(std::span<const Delivery> deliveries) {
    const std::lock_guard lock(mutex_);
    leases_.nack(deliveries);
    changed_.notify_all();
}

void PullSource::Impl::keep_house() {
    Backoff pauses(milliseconds{100}, milliseconds{5000});
    std::unique_lock lock(mutex_);
    extend_at_ = Clock::now() + options_.lease / 3;
    while (keeping_) {
        try {
            settle_and_extend(lock);
            if (closing_)
                release_all(lock);
            keeping_ = !closing_;
            pauses.reset();
        } catch (const std::exception& error) {
            if (log_)
                log_(Level::warning, source_ + ": " + outbox::printable(error.what()));
            if (!lock.owns_lock())
                lock.lock();
            settling_.reset();
            keeping_ = !closing_;
            changed_.wait_for(lock, pauses.next(), [this] { return closing_; });
        }
    }
    changed_.notify_all();
}

// Sends all settlements. Waits if there are none.
void PullSource::Impl::settle_and_extend(std::unique_lock<std::mutex>& lock) {
    changed_.wait_until(lock, extend_at_,
                        [this] { return closing_ || !leases_.settlements().empty(); });
    if (Clock::now() >= extend_at_)
        extend_all(lock);
    while (!leases_.settlements().empty()) {
        const Settlement next = leases_.settlements().front();
        lock.unlock();
        settle(next);
        lock.lock();
        // A seek may have cleared the settlements meanwhile.
        if (std::deque<Settlement>& left = leases_.settlements();
            !left.empty() && left.front().token == next.token)
            left.pop_front();
        if (Clock::now() >= extend_at_)
            extend_all(lock);
    }
}

void PullSource::Impl::settle(const Settlement& settlement) {
    if (settlement.nacked.empty()) {
        tell("SELECT outbox.ack($1::uuid)", {settlement.token});
        return;
    }
    std::unordered_set<std::string> behind;
    for (const std::string& id : settlement.nacked) {
        Result waits(nullptr);
        // Events behind a nacked one are no longer under the lease.
        if (behind.contains(id) ||
            !tell("SELECT outbox.nack($1::uuid, $2::uuid, 'the consumer could not apply it')",
                  {settlement.token, id}, &waits))
            continue;
        for (int row = 0; row < waits.rows(); row++)
            behind.emplace(waits.text(row, 0));
    }
}

void PullSource::Impl::extend_all(std::unique_lock<std::mutex>& lock) {
    extend_at_ = Clock::now() + options_.lease / 3;
    const std::vector<std::string> tokens = leases_.tokens();
    for (const std::string& token : tokens) {
        lock.unlock();
        const bool kept =
            tell("SELECT outbox.extend($1::uuid, $2::interval)", {token, interval(options_.lease)});
        lock.lock();
        if (!kept)
            leases_.forget(token);
    }
}

void PullSource::Impl::release_all(std::unique_lock<std::mutex>& lock) {
    for (const std::string& token : leases_.tokens()) {
        lock.unlock();
        tell("SELECT outbox.release($1::uuid)", {token});
        lock.lock();
        leases_.forget(token);
    }
}

// Returns false if the lease is lost, or if the server already knows.
bool PullSource::Impl::tell(const std::string& statement, const std::vector<Parameter>& parameters,
                            Result* result) {
    // After a crash of the server, lost settlements make events come again as duplicates.
    if (connect(settling_, give_up_))
        settling_->run(Whose::own, "SET synchronous_commit = off");
    try {
        Result answer = settling_->run(Whose::own, statement, parameters);
        if (result)
            *result = std::move(answer);
        return true;
    } catch (const StatementError& error) {
        if (error.sqlstate() == lease_lost || error.sqlstate() == "22023")
            return false;
        throw;
    }
}

void PullSource::Impl::close(milliseconds limit) noexcept {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, limit, [this] { return !keeping_; });
    give_up_.raise();
    lock.unlock();
    if (housekeeper_.joinable())
        housekeeper_.join();
}

// ------------------------------------------------------------------------------------------------
// The source
// ------------------------------------------------------------------------------------------------

// It is not interrupted while it connects. What the connection string or the environment says counts
// instead of our limit. Connection sets the session.
static Connect connects_to(const std::string& conninfo) {
    if (outbox::has_nul(conninfo))
        throw std::invalid_argument("inbox::PullSource: the connection string has a zero byte");
    return [conninfo] {
        outbox::LibpqParameters parameters;
        if (std::getenv("PGCONNECT_TIMEOUT") == nullptr)
            parameters.emplace_back("connect_timeout", "10");
        parameters.emplace_back("dbname", conninfo);
        return outbox::connect_libpq(std::move(parameters), true, std::nullopt);
    };
}

static Connect connects_by(ConnectionFactory factory) {
    if (!factory)
        return {};
    return [factory = std::move(factory)] { return made_by_factory(factory()); };
}

PullSource::PullSource(ConnectionFactory connect, std::string destination, PullOptions options)
    : impl_(std::make_unique<Impl>(
          connects_by(std::move(connect)), std::move(destination), options,
          [this](Level level, const std::string& message) { log(level, message); })) {}

PullSource::PullSource(const std::string& conninfo, std::string destination, PullOptions options)
    : impl_(std::make_unique<Impl>(
          connects_to(conninfo), std::move(destination), options,
          [this](Level level, const std::string& message) { log(level, message); })) {}

PullSource::~PullSource() = default;

std::string PullSource::subscription() const {
    return impl_->destination();
}

std::string PullSource::describe() const {
    return "pull:" + impl_->destination();
}

void PullSource::interrupt() noexcept {
    impl_->interrupt();
}

void PullSource::open() {
    impl_->open();
}

std::vector<Delivery> PullSource::receive(std::size_t max_messages, milliseconds wait) {
    return impl_->receive(max_messages, wait);
}

void PullSource::ack(std::span<const Delivery> deliveries) {
    impl_->ack(deliveries);
}

void PullSource::nack(std::span<const Delivery> deliveries) {
    impl_->nack(deliveries);
}

void PullSource::seek(Time to) {
    impl_->seek(to);
}

void PullSource::close(milliseconds limit) noexcept {
    impl_->close(limit);
}

}  // namespace inbox
