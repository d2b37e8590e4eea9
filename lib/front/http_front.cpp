#include "front/http_front.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/signals.hpp"
#include "front/http_head.hpp"

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

}  // namespace

// Returns -1 and sets errno if it cannot listen there. Without SO_REUSEPORT: two processes would share a
// port and take each other's probes.
static int listen_on(const addrinfo& address) {
    const int listener = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int yes = 1, no = 0;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (address.ai_family == AF_INET6)
        setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (listener < 0 || (bind(listener, address.ai_addr, address.ai_addrlen) == 0 &&
                         listen(listener, SOMAXCONN) == 0))
        return listener;
    const int error = errno;
    close(listener);
    errno = error;
    return -1;
}

static int port_of(int listener) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.ss_family == AF_INET6
                     ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

HttpFront::HttpFront(Fields shown, const HttpClients::Limits& limits, HttpClients::IsQuick is_quick)
    : shown_(std::move(shown)), limits_(limits), is_quick_(std::move(is_quick)) {
    set_payload_max_length(limits.body);
}

HttpFront::~HttpFront() {
    if (clients_ == nullptr && listener_ >= 0)
        close(listener_);
}

bool HttpFront::listen_at(const std::string& host, int port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                  std::to_string(port).c_str(), &hints, &found);
    if (error != 0) {
        errno = error == EAI_SYSTEM ? errno : EADDRNOTAVAIL;
        return false;
    }
    for (const addrinfo* address = found; address != nullptr && listener_ < 0;
         address = address->ai_next)
        listener_ = listen_on(*address);
    freeaddrinfo(found);
    if (listener_ < 0)
        return false;
    port_ = port_of(listener_);
    return true;
}

void HttpFront::start() {
    const SignalsBlocked blocked;  // threads inherit the mask
    clients_ = std::make_unique<HttpClients>(
        listener_, limits_, [this](std::string_view request) { return answer(request); },
        is_quick_);
}

// A field that is there twice could mean one thing to the library and another to a proxy.
std::string HttpFront::answer(std::string_view request) {
    const std::size_t end = request.find("\r\n\r\n");
    const std::string_view head = request.substr(0, end);
    std::string text(head.substr(0, head.find("\r\n")));
    std::vector<int> counts(shown_.size());
    visit_fields(head, [&](std::string_view name, std::string_view value) {
        for (std::size_t i = 0; i < shown_.size(); i++)
            if (is_called(name, shown_[i])) {
                text.append("\r\n").append(shown_[i]).append(": ").append(value);
                counts[i]++;
            }
    });
    if (std::any_of(counts.begin(), counts.end(), [](int count) { return count > 1; }))
        return refusal("400 Bad Request");
    MemoryStream stream(std::move(text.append(request.substr(end))));
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
