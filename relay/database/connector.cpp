#include "relay/database/connector.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "core/signals.hpp"

namespace outbox::relay {

static std::atomic<int> running_attempts = 0;

struct Connector::Shared {
    enum State { runs, has_ended, is_given_up };

    ConnectionParameters parameters;
    LibpqConnection connected;
    int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    std::atomic<State> state = runs;

    explicit Shared(ConnectionParameters of) : parameters(std::move(of)) {
        connected.failure = "out of memory";
    }
    ~Shared() {
        if (descriptor >= 0)
            close(descriptor);
    }

    void run() noexcept {
        try {
            connected = connect(parameters);
        } catch (...) {  // out of memory
        }
        if (state.exchange(has_ended) == is_given_up)
            connected.close();
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(descriptor, &one, sizeof one);
        running_attempts--;
    }
};

Connector::Connector(ConnectionParameters parameters)
    : shared_(std::make_shared<Shared>(std::move(parameters))) {
    const SignalsBlocked blocked;
    running_attempts++;
    try {
        std::thread([shared = shared_] { shared->run(); }).detach();
    } catch (...) {
        running_attempts--;
        throw;
    }
}

Connector::~Connector() {
    if (shared_->state.exchange(Shared::is_given_up) == Shared::has_ended)
        shared_->connected.close();  // unless it was taken
}

int Connector::descriptor() const noexcept {
    return shared_->descriptor;
}

bool Connector::has_ended() const noexcept {
    return shared_->state == Shared::has_ended;
}

LibpqConnection Connector::take() noexcept {
    return std::exchange(shared_->connected, {});
}

int Connector::running() noexcept {
    return running_attempts;
}

}  // namespace outbox::relay
