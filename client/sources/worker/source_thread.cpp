#include "worker/source_thread.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <system_error>

#include "core/signals.hpp"
#include "core/text.hpp"
#include "inbox/error.hpp"

namespace inbox::worker {

using outbox::Micros;
using std::chrono::microseconds;
using std::chrono::milliseconds;

static int checked(int descriptor, const char* what) {
    if (descriptor < 0)
        throw std::system_error(errno, std::generic_category(), what);
    return descriptor;
}

static void watch(int epoll, int descriptor) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event);
}

SourceThread::SourceThread()
    : wake_(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
    watch(epoll_, wake_);
}

SourceThread::~SourceThread() {
    ::close(epoll_);
    ::close(wake_);
}

// ---------------------------------------------------------------------------------------------
// For other threads
// ---------------------------------------------------------------------------------------------

void SourceThread::wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

void SourceThread::open(const Log& log) {
    std::unique_lock lock(mutex_);
    failure_.reset();
    if (ended_) {  // the thread ended by an exception, not by close()
        lock.unlock();
        thread_.join();
        lock.lock();
    }
    if (phase_ == Phase::closed || ended_)
        start(log);
    wake();
    changed_.wait(lock,
                  [&] { return failure_ || is_known() || phase_ != Phase::open || interrupted_; });
    if (failure_)
        raise();
    if (interrupted_)
        throw SourceError("interrupted", true);
}

// The thread goes on: messages of an earlier connection may still be settled.
void SourceThread::interrupt() noexcept {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
}

void SourceThread::start(const Log& log) {
    log_ = log;
    phase_ = Phase::open;
    ended_ = false;
    close_by_ = outbox::never;
    starts();
    const outbox::SignalsBlocked blocked;  // signals are for the program's own threads
    thread_ = std::thread([this] { run(); });
}

void SourceThread::raise() {
    throw SourceError(failure_->message, failure_->transient);
}

std::vector<Delivery> SourceThread::receive(std::size_t most, milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait,
                      [&] { return buffered() > 0 || failure_ || phase_ != Phase::open; });
    std::vector<Delivery> deliveries = take(most);
    if (deliveries.empty() && failure_)
        raise();
    lock.unlock();
    if (!deliveries.empty())
        wake();  // there is room for more
    return deliveries;
}

void SourceThread::ack(std::span<const Delivery> deliveries) {
    {
        const std::lock_guard lock(mutex_);
        settle(deliveries);
    }
    wake();
}

void SourceThread::nack(std::span<const Delivery> deliveries) {
    {
        const std::lock_guard lock(mutex_);
        give_back(deliveries);
    }
    wake();
}

void SourceThread::close(milliseconds limit) noexcept {
    {
        const std::lock_guard lock(mutex_);
        interrupted_ = false;
        if (phase_ == Phase::closed)
            return;
        phase_ = Phase::closing;
        give_back_all();
        close_by_ = clock_.now() + microseconds(limit).count();
        changed_.notify_all();
    }
    wake();
    thread_.join();
    const std::lock_guard lock(mutex_);
    phase_ = Phase::closed;
    forget_all();
}

// ---------------------------------------------------------------------------------------------
// The thread
// ---------------------------------------------------------------------------------------------

void SourceThread::run() {
    try {
        watch(epoll_, prepare());
        while (turn())
            continue;
    } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        fail(error.what(), true);
        ended_ = true;
    }
    clean_up();
}

void SourceThread::wait(Micros until) {
    const Micros left = std::max<Micros>(until - clock_.now(), 0);
    const auto timeout = until == outbox::never ? -1 : std::min<Micros>(left / 1000 + 1, INT_MAX);
    epoll_event events[2];
    epoll_wait(epoll_, events, 2, left == 0 ? 0 : static_cast<int>(timeout));
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = read(wake_, &count, sizeof count);
}

std::string SourceThread::clean(std::string message) const {
    secrets_.conceal(message);
    return outbox::printable(message);
}

void SourceThread::fail(std::string message, bool transient) {
    failure_ = {clean(std::move(message)), transient};
    changed_.notify_all();
}

void SourceThread::note(Level level, std::string message) {
    notes_.emplace_back(level, clean(std::move(message)));
}

void SourceThread::tell() {
    for (const auto& [level, message] : std::exchange(notes_, {}))
        if (log_)
            log_(level, message);
}

}  // namespace inbox::worker
