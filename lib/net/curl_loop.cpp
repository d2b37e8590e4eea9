#include "net/curl_loop.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "core/signals.hpp"  // libcurl resolves names in threads

namespace outbox {

// A process must end within a second of the request to end.
static constexpr std::chrono::milliseconds max_call{250};

CurlLoop::CurlLoop(const Clock& clock)
    : clock_(clock), watchdog_(max_call, [this] { shut_sockets(); }) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    multi_ = curl_multi_init();
    if (multi_ == nullptr)
        return;
    curl_multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
    curl_multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
}

CurlLoop::~CurlLoop() {
    if (multi_ != nullptr)
        curl_multi_cleanup(multi_);
    if (epoll_ >= 0)
        close(epoll_);
}

CURLMcode CurlLoop::add(CURL* easy) {
    const SignalsBlocked blocked;
    return curl_multi_add_handle(multi_, easy);
}

void CurlLoop::act(curl_socket_t socket, int events) {
    const SignalsBlocked blocked;
    int running = 0;
    acting_ = socket;
    watchdog_.begin();
    curl_multi_socket_action(multi_, socket, events, &running);
    watchdog_.end();
}

void CurlLoop::note_socket(curl_socket_t socket, bool known) {
    const std::lock_guard lock(sockets_mutex_);
    std::erase(sockets_, socket);
    if (known)
        sockets_.push_back(socket);
}

// Runs in the watchdog's thread while libcurl reads without end. For libcurl it looks as if the
// peer had closed the connection.
void CurlLoop::shut_sockets() noexcept {
    const std::lock_guard lock(sockets_mutex_);
    for (const curl_socket_t socket : sockets_)
        if (acting_ == CURL_SOCKET_TIMEOUT || acting_ == socket)
            shutdown(socket, SHUT_RDWR);
}

int CurlLoop::on_socket(CURL*, curl_socket_t socket, int what, void* self, void* known) noexcept {
    auto* loop = static_cast<CurlLoop*>(self);
    epoll_event event{};
    event.data.u64 = curl_mark | static_cast<std::uint64_t>(socket);
    event.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    // A descriptor that libcurl has already closed is gone from the set, so errors do not matter
    // here.
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(loop->epoll_, EPOLL_CTL_DEL, socket, &event);
    } else if (epoll_ctl(loop->epoll_, known != nullptr ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket,
                         &event) != 0) {
        epoll_ctl(loop->epoll_, known != nullptr ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, socket, &event);
    }
    curl_multi_assign(loop->multi_, socket, self);  // makes `known` non-null in later calls
    try {
        loop->note_socket(socket, what != CURL_POLL_REMOVE);
    } catch (...) {
        return -1;
    }
    return 0;
}

int CurlLoop::on_timer(CURLM*, long timeout, void* self) noexcept {
    auto* loop = static_cast<CurlLoop*>(self);
    loop->deadline_ = timeout < 0 ? never : loop->clock_.now() + milliseconds(timeout);
    return 0;
}

}  // namespace outbox
