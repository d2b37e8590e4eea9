#include "redis/worker.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <system_error>

#include "core/signals.hpp"
#include "core/text.hpp"
#include "inbox/error.hpp"

namespace inbox::redis {

using outbox::Micros;
using std::chrono::microseconds;
using std::chrono::milliseconds;

static int checked(int descriptor, const char* what) {
    if (descriptor < 0)
        throw std::system_error(errno, std::generic_category(), what);
    return descriptor;
}

Worker::Worker(Setup setup)
    : setup_(std::move(setup)),
      wake_(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
}

Worker::~Worker() {
    close(milliseconds(0));
    ::close(epoll_);
    ::close(wake_);
}

// ---------------------------------------------------------------------------------------------
// For other threads
// ---------------------------------------------------------------------------------------------

void Worker::wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

void Worker::open(const Log& log) {
    std::unique_lock lock(mutex_);
    if (ended_) {  // by an exception, not by close()
        lock.unlock();
        thread_.join();
        lock.lock();
        phase_ = Phase::closed;
    }
    if (phase_ == Phase::closed)
        start(log);
    for (const std::unique_ptr<Session>& session : sessions_)
        session->retry();
    wake();
    changed_.wait(lock, [&] { return failure() || is_known() || phase_ != Phase::open; });
    if (const Session::Failure* const why = failure())
        raise(*why);
}

void Worker::start(const Log& log) {
    log_ = log;
    phase_ = Phase::open;
    ended_.reset();
    close_by_ = outbox::never;
    sessions_.clear();
    for (std::size_t number = 0; number < setup_.streams.size(); number++)
        sessions_.push_back(std::make_unique<Session>(setup_, number, clock_, epoll_));
    const outbox::SignalsBlocked blocked;  // signals are for the program's own threads
    thread_ = std::thread([this] { run(); });
}

bool Worker::is_known() const {
    return std::ranges::all_of(sessions_, [](const auto& session) { return session->is_known(); });
}

bool Worker::has_deliveries() const {
    return std::ranges::any_of(sessions_,
                               [](const auto& session) { return session->claims().waiting() > 0; });
}

const Session::Failure* Worker::failure() const {
    if (ended_)
        return &*ended_;
    for (const std::unique_ptr<Session>& session : sessions_)
        if (session->failure())
            return &*session->failure();
    return nullptr;
}

void Worker::raise(const Session::Failure& failure) {
    throw SourceError(failure.message, failure.transient);
}

std::vector<Delivery> Worker::receive(std::size_t most, milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait,
                      [&] { return has_deliveries() || failure() || phase_ != Phase::open; });
    std::vector<Delivery> deliveries;
    for (std::size_t i = 0; i < sessions_.size() && deliveries.size() < most; i++)
        sessions_[next_++ % sessions_.size()]->claims().take(most - deliveries.size(), deliveries);
    if (const Session::Failure* const why = failure(); why && deliveries.empty())
        raise(*why);
    lock.unlock();
    if (!deliveries.empty())
        wake();  // there is room for more
    return deliveries;
}

// The handle of a delivery is the number of its stream and the id of its entry.
template <class Act>
void Worker::settle(std::span<const Delivery> deliveries, Act act) {
    {
        const std::lock_guard lock(mutex_);
        for (const Delivery& delivery : deliveries) {
            const std::string_view handle = delivery.handle;
            const std::size_t space = std::min(handle.find(' '), handle.size());
            const auto number = outbox::parse_integer(handle.substr(0, space));
            const auto id =
                outbox::StreamId::parse(handle.substr(std::min(space + 1, handle.size())));
            if (number && id && static_cast<std::size_t>(*number) < sessions_.size())
                act(sessions_[static_cast<std::size_t>(*number)]->claims(), *id, delivery);
        }
        changed_.notify_all();  // what is given back may be received again
    }
    wake();
}

void Worker::ack(std::span<const Delivery> deliveries) {
    settle(deliveries,
           [](Claims& claims, outbox::StreamId id, const Delivery&) { claims.ack(id); });
}

void Worker::nack(std::span<const Delivery> deliveries) {
    settle(deliveries, [](Claims& claims, outbox::StreamId id, const Delivery& delivery) {
        claims.nack(id, delivery);
    });
}

void Worker::close(milliseconds limit) noexcept {
    {
        const std::lock_guard lock(mutex_);
        if (phase_ == Phase::closed)
            return;
        phase_ = Phase::closing;
        for (const std::unique_ptr<Session>& session : sessions_)
            session->begin_to_close();
        close_by_ = clock_.now() + microseconds(limit).count();
        changed_.notify_all();
    }
    wake();
    thread_.join();
    const std::lock_guard lock(mutex_);
    phase_ = Phase::closed;
    sessions_.clear();
}

// ---------------------------------------------------------------------------------------------
// The thread
// ---------------------------------------------------------------------------------------------

void Worker::run() {
    try {
        while (turn())
            continue;
    } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        ended_ = {error.what(), true};
        changed_.notify_all();
    }
}

bool Worker::turn() {
    for (const std::unique_ptr<Session>& session : sessions_)
        session->step(clock_.now());
    Micros until = close_by_;
    bool ends = false;
    std::vector<std::pair<Level, std::string>> notes;
    {
        const std::lock_guard lock(mutex_);
        const Micros now = clock_.now();
        until = close_by_;
        for (const std::unique_ptr<Session>& session : sessions_) {
            until = std::min(until, session->work(now));
            std::ranges::move(session->take_notes(), std::back_inserter(notes));
        }
        ends = phase_ == Phase::closing && (is_settled() || now >= close_by_);
        if (ends && !is_settled())
            notes.emplace_back(
                Level::warning,
                setup_.subscription + ": some entries could not be settled before the end");
        changed_.notify_all();
    }
    for (const auto& [level, message] : notes)  // the log is foreign code
        if (log_)
            log_(level, message);
    if (!ends)
        wait(until);
    return !ends;
}

void Worker::wait(Micros until) {
    for (const std::unique_ptr<Session>& session : sessions_)
        until = std::min(until, session->deadline());
    const Micros left = std::max<Micros>(until - clock_.now(), 0);
    const auto timeout = until == outbox::never ? -1 : std::min<Micros>(left / 1000 + 1, INT_MAX);
    epoll_event events[16];
    epoll_wait(epoll_, events, 16, left == 0 ? 0 : static_cast<int>(timeout));
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = read(wake_, &count, sizeof count);
}

bool Worker::is_settled() const {
    return std::ranges::all_of(sessions_,
                               [](const auto& session) { return session->is_settled(); });
}

}  // namespace inbox::redis
