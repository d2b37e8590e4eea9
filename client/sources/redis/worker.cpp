#include "redis/worker.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "core/text.hpp"
#include "inbox/error.hpp"

namespace inbox::redis {

using outbox::Micros;
using std::chrono::milliseconds;

static int created_epoll() {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        throw std::system_error(errno, std::generic_category(), "epoll_create1");
    return epoll;
}

Worker::Worker(Setup setup) : setup_(std::move(setup)), epoll_(created_epoll()) {
    keep_secret(setup_.login.password);
    keep_secret(setup_.sentinel_login.password);
}

Worker::~Worker() {
    close(milliseconds(0));
    sessions_.clear();
    ::close(epoll_);
}

// ---------------------------------------------------------------------------------------------
// For other threads
// ---------------------------------------------------------------------------------------------

void Worker::starts() {
    sessions_.clear();
    for (std::size_t number = 0; number < setup_.streams.size(); number++)
        sessions_.push_back(std::make_unique<Session>(setup_, number, clock_, epoll_));
    for (const std::unique_ptr<Session>& session : sessions_)
        for (const Position& position : saved_)
            if (position.subscription == session->subscription())
                session->load(position);
}

void Worker::forget_all() {
    for (const std::unique_ptr<Session>& session : sessions_)
        std::ranges::move(session->take_gaps(), std::back_inserter(gaps_));
    sessions_.clear();
}

bool Worker::is_known() const {
    return std::ranges::all_of(sessions_, [](const auto& session) { return session->is_known(); });
}

std::size_t Worker::buffered() const {
    std::size_t count = 0;
    for (const std::unique_ptr<Session>& session : sessions_)
        count += session->claims().waiting();
    return count;
}

std::vector<Delivery> Worker::take(std::size_t most) {
    std::vector<Delivery> deliveries;
    for (std::size_t i = 0; i < sessions_.size() && deliveries.size() < most; i++)
        sessions_[next_++ % sessions_.size()]->claims().take(most - deliveries.size(), deliveries);
    return deliveries;
}

template <class Act>
void Worker::for_each(std::span<const Delivery> deliveries, Act act) {
    for (const Delivery& delivery : deliveries)
        if (const std::optional<Handle> handle = Handle::parse(delivery.handle);
            handle && handle->session < sessions_.size())
            act(sessions_[handle->session]->claims(), *handle, delivery);
}

void Worker::settle(std::span<const Delivery> deliveries) {
    for_each(deliveries, [](Claims& claims, const Handle& handle, const Delivery&) {
        claims.ack(handle.generation, handle.id);
    });
}

void Worker::give_back(std::span<const Delivery> deliveries) {
    for_each(deliveries, [](Claims& claims, const Handle& handle, const Delivery& delivery) {
        claims.nack(handle.generation, handle.id, delivery);
    });
    changed_.notify_all();  // they may be received again
}

// One position for each stream: the highest id.
std::vector<Position> Worker::positions(std::span<const Delivery* const> deliveries) {
    std::map<std::size_t, std::pair<outbox::StreamId, const Delivery*>> newest;
    for (const Delivery* const delivery : deliveries)
        if (const std::optional<Handle> handle = Handle::parse(delivery->handle)) {
            auto& [id, last] = newest[handle->session];
            if (last == nullptr || handle->id > id) {
                id = handle->id;
                last = delivery;
            }
        }
    std::vector<Position> positions;
    const std::lock_guard lock(mutex_);
    for (const auto& [session, last] : newest)
        if (session < sessions_.size())
            positions.push_back(sessions_[session]->position_of(*last.second));
    return positions;
}

std::vector<Gap> Worker::gaps() {
    const std::lock_guard lock(mutex_);
    std::vector<Gap> gaps = std::exchange(gaps_, {});
    for (const std::unique_ptr<Session>& session : sessions_)
        std::ranges::move(session->take_gaps(), std::back_inserter(gaps));
    return gaps;
}

// Has no effect while the source is open.
void Worker::load_positions(const LoadPositions& load) {
    {
        const std::lock_guard lock(mutex_);
        if (!load || phase_ != Phase::closed)
            return;
    }
    std::vector<std::string> names;
    for (const std::string& stream : setup_.streams)
        names.push_back(subscription_of(stream, setup_.group));
    std::vector<Position> saved;
    try {
        saved = load(names);
    } catch (const DatabaseError& error) {
        throw SourceError(std::string("cannot load the positions: ") + error.what(), true);
    }
    const std::lock_guard lock(mutex_);
    saved_ = std::move(saved);
}

void Worker::give_back_all() {
    for (const std::unique_ptr<Session>& session : sessions_)
        session->begin_to_close();
}

// ---------------------------------------------------------------------------------------------
// The thread
// ---------------------------------------------------------------------------------------------

bool Worker::turn() {
    for (const std::unique_ptr<Session>& session : sessions_)
        session->step(clock_.now());
    Micros until = 0;
    bool ends = false;
    {
        const std::lock_guard lock(mutex_);
        until = work();
        ends = may_end();
    }
    tell();
    if (ends)
        return false;
    for (const std::unique_ptr<Session>& session : sessions_)
        until = std::min(until, session->deadline());
    wait(until);
    return true;
}

// Under the mutex. A session that has failed waits until the source is opened again.
Micros Worker::work() {
    const Micros now = clock_.now();
    const bool is_open = !failure_;
    Micros until = close_by_;
    for (const std::unique_ptr<Session>& session : sessions_) {
        if (is_open)
            session->retry();
        until = std::min(until, session->work(now));
        if (session->failure() && !failure_)
            fail(session->failure()->message, session->failure()->transient);
        for (auto& [level, message] : session->take_notes())
            note(level, std::move(message));
    }
    changed_.notify_all();
    return until;
}

bool Worker::is_settled() const {
    return std::ranges::all_of(sessions_,
                               [](const auto& session) { return session->is_settled(); });
}

bool Worker::may_end() {
    if (phase_ != Phase::closing)
        return false;
    if (is_settled())
        return true;
    if (clock_.now() < close_by_)
        return false;
    if (std::ranges::any_of(sessions_, [](const auto& session) { return session->has_entries(); }))
        note(Level::warning,
             setup_.subscription + ": some entries could not be settled before the end");
    return true;
}

}  // namespace inbox::redis
