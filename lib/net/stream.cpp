#include "net/stream.hpp"

#include <algorithm>
#include <utility>

#include "net/connection_scope.hpp"

namespace outbox {

// In one step, so that a peer that never stops sending does not hold up the loop.
static constexpr std::size_t max_in_one_step = 1024 * 1024;
static constexpr std::size_t read_size = 64 * 1024;

TransportConfig stream_config(const TransportOptions& options, const Clock& clock,
                              const std::string& host, const std::string& port, bool tls,
                              std::string_view plain_scheme) {
    Url url;
    url.scheme = tls ? "https" : "http";
    url.host = host;
    url.port = port;
    url.path = "/";
    const bool is_ipv6 = host.find(':') != std::string::npos;
    std::string text =
        url.scheme + "://" + (is_ipv6 ? "[" + host + "]" : host) + ':' + port + url.path;
    TransportConfig config = transport_config(options, clock, std::move(text), std::move(url), 1);
    config.plain_scheme = plain_scheme;
    return config;
}

Stream::Stream(TransportConfig config, std::size_t max_input)
    : config_(std::move(config)),
      max_input_(max_input),
      address_check_(config_),
      loop_(config_.clock),
      certificates_(config_) {}

Stream::~Stream() {
    close();
}

Micros Stream::deadline() const noexcept {
    // open() has failed, or bytes wait.
    if ((easy_ == nullptr && state_ == State::connecting) || may_have_more_)
        return 0;
    return loop_.deadline();
}

void Stream::open() {
    close();
    failure_.clear();
    scope_ = Scope::connection;
    error_[0] = '\0';
    address_check_.reset();
    input_.clear();
    consumed_ = 0;
    output_.clear();
    sending_.clear();
    sent_ = 0;
    state_ = State::connecting;
}

void Stream::step(Micros now) {
    if (state_ == State::closed)
        return;
    if (easy_ == nullptr) {
        start();
        return;
    }
    bool readable = std::exchange(may_have_more_, false), writable = false;
    loop_.step(now, [&](const epoll_event& event) {
        readable |= (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
        writable |= (event.events & EPOLLOUT) != 0;
    });
    if (state_ == State::connecting)
        loop_.take_finished([&](CURL*, CURLcode result) { connected(result); });
    if (readable && state_ == State::open)
        read_some();
    if (writable && state_ == State::open)
        flush();
}

// -- connecting -----------------------------------------------------------------------------------

void Stream::start() {
    if (!loop_.usable()) {
        fail("could not set up libcurl");
        return;
    }
    // Options are checked, but a peer may have named it. libcurl would take "user@host" too.
    if (!is_host_name(config_.url.host)) {
        fail("the host of the server is not a host name", Scope::destination);
        return;
    }
    easy_ = curl_easy_init();
    if (easy_ == nullptr)
        throw std::bad_alloc();
    set_connection_options(easy_, config_);
    curl_easy_setopt(easy_, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(easy_, CURLOPT_SSL_ENABLE_ALPN, 0L);  // it would offer HTTP
    curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, error_);
    address_check_.install(easy_);
    if (std::optional<std::string> why = certificates_.set(easy_)) {
        fail(std::move(*why), Scope::destination);
        return;
    }
    if (loop_.add(easy_) != CURLM_OK)
        fail("could not start a connection");
}

void Stream::connected(CURLcode result) {
    // The handle stays in libcurl, because removing it would close the connection.
    curl_socket_t socket = CURL_SOCKET_BAD;
    if (result == CURLE_OK)
        curl_easy_getinfo(easy_, CURLINFO_ACTIVESOCKET, &socket);
    if (socket == CURL_SOCKET_BAD) {
        fail(address_check_.explain(result, error_), scope_of(result));
        return;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = this;
    if (epoll_ctl(loop_.epoll(), EPOLL_CTL_ADD, socket, &event) != 0) {
        fail("could not watch a connection");
        return;
    }
    socket_ = socket;
    state_ = State::open;
    may_have_more_ = true;  // bytes may have come with the end of the handshake
}

void Stream::fail(std::string why, Scope scope) {
    failure_ = std::move(why);
    scope_ = scope;
    close();
}

void Stream::lost(CURLcode result) {
    fail(error_[0] != '\0' ? error_ : curl_easy_strerror(result));
}

void Stream::close() noexcept {
    if (socket_ >= 0)
        epoll_ctl(loop_.epoll(), EPOLL_CTL_DEL, socket_, nullptr);
    socket_ = -1;
    if (easy_ != nullptr) {
        curl_multi_remove_handle(loop_.multi(), easy_);
        curl_easy_cleanup(std::exchange(easy_, nullptr));
    }
    state_ = State::closed;
    wants_write_ = may_have_more_ = false;
}

// -- bytes ----------------------------------------------------------------------------------------

void Stream::read_some() {
    if (consumed_ > 0) {
        input_.erase(0, consumed_);
        consumed_ = 0;
    }
    for (std::size_t all = 0; all < max_in_one_step && input_.size() < max_input_;) {
        const std::size_t before = input_.size();
        input_.resize(before + read_size);
        std::size_t size = 0;
        const CURLcode result = curl_easy_recv(easy_, input_.data() + before, read_size, &size);
        input_.resize(before + size);
        if (result == CURLE_AGAIN)
            return;
        if (result != CURLE_OK) {
            lost(result);
            return;
        }
        if (size == 0) {
            fail("the peer closed the connection");
            return;
        }
        all += size;
    }
    may_have_more_ = true;
}

void Stream::flush() {
    while (state_ == State::open) {
        if (sent_ == sending_.size()) {
            sending_.clear();
            sent_ = 0;
            if (output_.empty())
                break;
            std::swap(sending_, output_);
        }
        std::size_t size = 0;
        const CURLcode result =
            curl_easy_send(easy_, sending_.data() + sent_, sending_.size() - sent_, &size);
        if (result == CURLE_AGAIN) {
            want_write(true);
            return;
        }
        if (result != CURLE_OK) {
            read_some();  // the peer may have said why it closes the connection
            if (state_ == State::open)
                lost(result);
            return;
        }
        sent_ += size;
    }
    want_write(false);
}

void Stream::want_write(bool wanted) {
    if (wants_write_ == wanted || socket_ < 0)
        return;
    wants_write_ = wanted;
    epoll_event event{};
    event.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.ptr = this;
    epoll_ctl(loop_.epoll(), EPOLL_CTL_MOD, socket_, &event);
}

}  // namespace outbox
