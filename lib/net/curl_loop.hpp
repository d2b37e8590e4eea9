// libcurl's multi interface on an epoll instance of our own. The relay waits on the descriptor of
// that instance.
//
// Callbacks record and return: they do no work and throw nothing through libcurl.
//
// Threads. All members belong to the owner's thread, except `sockets_` and `acting_`, which the
// watchdog's thread reads in shut_sockets(). The owner writes `acting_` before each call into
// libcurl, and changes `sockets_` under `sockets_mutex_`, in callbacks within such a call. The
// watchdog acts only on sockets of libcurl. But the call that it watched may just have ended, and
// then it may shut the socket of the next call. That costs this call its request, which is then
// tried again.
#pragma once

#include <curl/curl.h>
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/clock.hpp"
#include "net/watchdog.hpp"

namespace outbox {

class CurlLoop {
  public:
    explicit CurlLoop(const Clock& clock);
    ~CurlLoop();
    CurlLoop(const CurlLoop&) = delete;
    CurlLoop& operator=(const CurlLoop&) = delete;

    // If false, the system refused a resource and nothing works.
    bool usable() const { return multi_ != nullptr && epoll_ >= 0; }
    CURLM* multi() { return multi_; }
    int epoll() const { return epoll_; }
    Micros deadline() const { return deadline_; }

    // Starts a transfer or a connection.
    CURLMcode add(CURL* easy);

    // Runs libcurl for descriptors that are ready. `other(event)` gets the events of all other
    // descriptors: those registered in epoll() with a pointer.
    template <class Other>
    void step(Micros now, Other other);

    // Calls finished(easy, result) for each transfer that ended.
    template <class Finished>
    void take_finished(Finished finished);

  private:
    // Marks descriptors of libcurl in epoll_data. Pointers never have this bit.
    static constexpr std::uint64_t curl_mark = std::uint64_t{1} << 63;

    static int on_socket(CURL*, curl_socket_t socket, int what, void* self, void* known) noexcept;
    static int on_timer(CURLM*, long timeout, void* self) noexcept;
    void act(curl_socket_t socket, int events);
    void note_socket(curl_socket_t socket, bool known);
    void shut_sockets() noexcept;

    const Clock& clock_;
    int epoll_ = -1;
    CURLM* multi_ = nullptr;
    Micros deadline_ = never;

    std::atomic<curl_socket_t> acting_ = CURL_SOCKET_BAD;  // the socket that libcurl is called for
    std::mutex sockets_mutex_;
    std::vector<curl_socket_t> sockets_;  // all sockets of libcurl
    Watchdog watchdog_;
};

// ---------------------------------------------------------------------------------------------

template <class Other>
void CurlLoop::step(Micros now, Other other) {
    epoll_event events[64];
    const int count = epoll_wait(epoll_, events, 64, 0);
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 & curl_mark) {
            const int ready = (events[i].events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
                              (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                              (events[i].events & EPOLLERR ? CURL_CSELECT_ERR : 0);
            act(static_cast<curl_socket_t>(events[i].data.u64 & ~curl_mark), ready);
        } else {
            other(events[i]);
        }
    }
    if (now >= deadline_) {
        deadline_ = never;
        act(CURL_SOCKET_TIMEOUT, 0);
    }
}

template <class Finished>
void CurlLoop::take_finished(Finished finished) {
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(multi_, &left))
        if (message->msg == CURLMSG_DONE)
            finished(message->easy_handle, message->data.result);
}

}  // namespace outbox
