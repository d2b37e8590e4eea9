#include "sinks/postgresql/login_step.hpp"

#include <openssl/crypto.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include "core/signals.hpp"

namespace outbox {

static std::atomic<int> running = 0;
static std::atomic<int> left_over = 0;

struct LoginStep::Shared {
    enum State { runs, has_ended, is_given_up };

    PGconn* connection;
    int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    std::atomic<State> state = runs;
    std::atomic<pid_t> thread = 0;
    // The thread stores it last, so a reader of it sees the connection as the thread left it.
    std::atomic<PostgresPollingStatusType> status = PGRES_POLLING_FAILED;

    explicit Shared(PGconn* of) : connection(of) {}
    ~Shared() {
        if (descriptor >= 0)
            close(descriptor);
    }

    void run() noexcept {
        thread = gettid();
        status = PQconnectPoll(connection);
        if (state.exchange(has_ended) == is_given_up) {
            PQfinish(connection);
            left_over--;
        }
        running--;
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(descriptor, &one, sizeof one);
    }
};

LoginStep::LoginStep(PGconn* connection) : shared_(std::make_shared<Shared>(connection)) {
    const SignalsBlocked blocked;
    running++;
    try {
        std::thread([shared = shared_] { shared->run(); }).detach();
    } catch (...) {
        running--;
        throw;
    }
}

bool LoginStep::give_up() noexcept {
    left_over++;
    if (shared_->state.exchange(Shared::is_given_up) == Shared::has_ended) {
        left_over--;
        return false;
    }
    if (const pid_t thread = shared_->thread; thread != 0)
        setpriority(PRIO_PROCESS, static_cast<id_t>(thread), 19);
    return true;
}

int LoginStep::descriptor() const noexcept {
    return shared_->descriptor;
}

PostgresPollingStatusType LoginStep::status() const noexcept {
    return shared_->status;
}

bool LoginStep::one_is_left_over() noexcept {
    return left_over > 0;
}

void LoginStep::prepare_process() {
    static const bool prepared = [] {
        // OpenSSL must register its clean-up at exit before our handler: exit handlers run in
        // reverse order.
        OPENSSL_init_crypto(0, nullptr);
        on_exit(
            [](int status, void*) {
                if (running > 0)
                    _exit(status);
            },
            nullptr);
        return true;
    }();
    static_cast<void>(prepared);
}

}  // namespace outbox
