// libcurl's multi interface on an epoll instance of our own, whose descriptor the relay waits on.
//
// Callbacks record and return; nothing is done inside them, and nothing is thrown through libcurl.
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

    // False: the system refused what is needed; nothing works then.
    bool usable() const { return multi_ != nullptr && epoll_ >= 0; }
    CURLM* multi() { return multi_; }
    int epoll() const { return epoll_; }
    Micros deadline() const { return deadline_; }

    // Starts a transfer, or a connection.
    CURLMcode add(CURL* easy);

    // Runs libcurl for what is ready. `other(event)` gets the events of descriptors that are not
    // libcurl's: those registered in epoll() with a pointer.
    template <class Other>
    void step(Micros now, Other other);

    // Calls finished(easy, result) for each transfer that ended.
    template <class Finished>
    void take_finished(Finished finished);

  private:
    // Marks a descriptor of libcurl in epoll_data; no pointer has this bit.
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

    std::atomic<curl_socket_t> acting_ = CURL_SOCKET_BAD;  // what libcurl is at work for
    std::mutex sockets_mutex_;
    std::vector<curl_socket_t> sockets_;  // all of libcurl's
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
