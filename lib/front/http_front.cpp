#include "front/http_front.hpp"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

namespace outbox {

namespace {

// A request that has been read, and room for its response. In some
// versions of the library, some of these functions are not virtual.
class MemoryStream final : public httplib::Stream {
  public:
    explicit MemoryStream(std::string request) : request_(std::move(request)) {}
    std::string take_response() { return std::move(response_); }

    bool is_readable() const { return true; }
    bool is_writable() const { return true; }
    bool wait_readable() const { return true; }
    bool wait_writable() const { return true; }
    ssize_t read(char* to, size_t size) {
        size = std::min(size, request_.size() - read_);
        std::copy_n(request_.data() + read_, size, to);
        read_ += size;
        return static_cast<ssize_t>(size);
    }
    ssize_t write(const char* from, size_t size) {
        response_.append(from, size);
        return static_cast<ssize_t>(size);
    }
    void get_remote_ip_and_port(std::string&, int&) const {}
    void get_local_ip_and_port(std::string&, int&) const {}
    socket_t socket() const { return INVALID_SOCKET; }
    time_t duration() const { return 0; }

  private:
    std::string request_;
    std::size_t read_ = 0;
    std::string response_;
};

// A connection is handed over in the thread that accepts it.
class AtOnce final : public httplib::TaskQueue {
  public:
    // Nothing or bool, depending on the version.
    using Enqueued = decltype(std::declval<httplib::TaskQueue>().enqueue({}));

    Enqueued enqueue(std::function<void()> task) override {
        task();
        return static_cast<Enqueued>(true);
    }
    void shutdown() override {}
};

// Threads inherit the mask.
class SignalsBlocked {
  public:
    SignalsBlocked() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t before_;
};

}  // namespace

HttpFront::HttpFront(Shown shown, const HttpClients::Limits& limits, HttpClients::IsQuick is_quick)
    : shown_(shown), limits_(limits), is_quick_(std::move(is_quick)) {
    new_task_queue = [] { return new AtOnce; };
    set_payload_max_length(limits.body);
    // Without SO_REUSEPORT, which the library sets: two processes would share a port and take each
    // other's probes.
    set_socket_options([](socket_t socket) {
        const int yes = 1;
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
}

HttpFront::~HttpFront() {
    if (thread_.joinable()) {
        stop();
        thread_.join();
    }
}

bool HttpFront::listen_at(const std::string& host, int port) {
    if (port == 0)
        port_ = bind_to_any_port(host);
    else if (bind_to_port(host, port))
        port_ = port;
    // The library lets 5 connections wait to be accepted; further clients try again after a second.
    return port_ > 0 && ::listen(svr_sock_, SOMAXCONN) == 0;
}

void HttpFront::start() {
    const SignalsBlocked blocked;
    clients_ = std::make_unique<HttpClients>(
        limits_, [this](std::string_view request) { return answer(request); }, is_quick_);
    thread_ = std::thread([this] {
        listen_after_bind();
        ended_ = true;
    });
    while (!is_running() && !ended_)  // stop() has no effect before
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool HttpFront::process_and_close_socket(socket_t socket) {
    clients_->add(socket);
    return true;
}

std::string HttpFront::answer(std::string_view request) {
    const std::string line(request.substr(0, request.find("\r\n")));
    MemoryStream stream(shown_ == Shown::all ? std::string(request) : line + "\r\n\r\n");
    process(*this, stream);
    return stream.take_response();
}

// From version 0.16 on the library wants to be told the addresses. A template, because the other
// call need not compile.
template <class Self, class Stream>
void HttpFront::process(Self& self, Stream& stream) {
    bool closed = false;
    if constexpr (requires { self.process_request(stream, true, closed, nullptr); })
        self.process_request(stream, true, closed, nullptr);
    else
        self.process_request(stream, "", 0, "", 0, true, closed, nullptr);
}

}  // namespace outbox
