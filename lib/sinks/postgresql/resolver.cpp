#include "sinks/postgresql/resolver.hpp"

#include <netdb.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>
#include <system_error>
#include <thread>

#include "core/signals.hpp"

namespace outbox {

static void freeaddrinfo_if_any(addrinfo* found) {
    if (found != nullptr)
        freeaddrinfo(found);
}

struct Resolver::LookUp {
    std::string host;
    int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    // See the protocol in resolver.hpp.
    std::string addresses;
    std::string error;
    enum State { runs, has_ended, has_no_memory };
    std::atomic<State> state = runs;

    ~LookUp() {
        if (descriptor >= 0)
            close(descriptor);
    }

    // noexcept, because nothing could catch an exception of the thread.
    void run() noexcept {
        try {
            look_up();
            state = has_ended;
        } catch (...) {
            state = has_no_memory;
        }
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(descriptor, &one, sizeof one);
    }

    void look_up() {
        addrinfo hints{};
        hints.ai_socktype = SOCK_STREAM;
        addrinfo* first = nullptr;
        const int code = getaddrinfo(host.c_str(), nullptr, &hints, &first);
        const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(first, freeaddrinfo_if_any);
        if (code != 0)
            error = "could not translate host name \"" + host + "\": " + gai_strerror(code);
        for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
            char text[NI_MAXHOST];
            if (getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, nullptr, 0,
                            NI_NUMERICHOST) != 0)
                continue;
            if (!addresses.empty())
                addresses += ',';
            addresses += text;
        }
    }
};

Resolver::Resolver(const std::string& host) : look_up_(std::make_shared<LookUp>()) {
    look_up_->host = host;
    const SignalsBlocked blocked;
    std::thread([look_up = look_up_] { look_up->run(); }).detach();
}

Resolver::~Resolver() = default;

int Resolver::descriptor() const {
    return look_up_->descriptor;
}

std::string Resolver::addresses() const {
    if (look_up_->state == LookUp::has_no_memory)
        throw std::bad_alloc();
    return look_up_->addresses;
}

std::string Resolver::error() const {
    return look_up_->error.empty() ? "host name has no address" : look_up_->error;
}

}  // namespace outbox
