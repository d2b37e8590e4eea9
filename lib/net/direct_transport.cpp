// The transport for http. libcurl resolves the name and connects (CURLOPT_CONNECT_ONLY). This file
// exchanges requests and responses over the connected socket, one request at a time per connection.
//
// The exchange is our own code for speed. For each request libcurl's multi interface allocates,
// sets up and tears down a transfer: it sent 0.31 to 0.40 times as many requests per second as wrk,
// and this file three times as many as libcurl (docs/performance.md). The price is a parser of
// responses, net/http1_response. This file can be dropped when libcurl's multi interface comes
// close to its speed (docs/decisions/003-own-http-exchange.md).
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "core/text.hpp"
#include "net/address_check.hpp"
#include "net/connection_scope.hpp"
#include "net/curl_loop.hpp"
#include "net/curl_options.hpp"
#include "net/http1_response.hpp"
#include "net/transport.hpp"

namespace outbox {

namespace {

struct Connection {
    enum class State { connecting, idle, busy, dead };

    CURL* easy = nullptr;  // owns the socket
    int socket = -1;
    State state = State::connecting;
    bool used = false;  // has received a response before
    bool wants_write = false;
    Exchange* exchange = nullptr;
    std::string head;
    std::size_t sent = 0;  // bytes of head and body together
    Http1Response response;
    Micros deadline = never;
    char error[CURL_ERROR_SIZE];
    AddressCheck address_check;

    explicit Connection(const TransportConfig& config) : address_check(config) {}
    // Frees a handle that the loop never got because memory ran out.
    ~Connection() {
        if (easy != nullptr)
            curl_easy_cleanup(easy);
    }
};

class DirectTransport final : public Transport {
  public:
    explicit DirectTransport(TransportConfig config)
        : config_(std::move(config)), loop_(config_.clock) {
        const Url& url = config_.url;
        target_ = request_target(config_);
        fixed_head_ =
            " HTTP/1.1\r\nHost: " + host_header(url) + "\r\nUser-Agent: " + user_agent + "\r\n";
        if (!config_.authorization.empty())
            fixed_head_ += "Authorization: " + config_.authorization + "\r\n";
    }

    ~DirectTransport() override {
        for (const auto& connection : connections_)
            close(*connection);
    }

    int descriptor() const noexcept override { return loop_.epoll(); }

    Micros deadline() const noexcept override {
        if (!finished_.empty())
            return 0;
        Micros first = loop_.deadline();
        for (const auto& connection : connections_)
            first = std::min(first, connection->deadline);
        return first;
    }

    void send(Exchange& exchange) override {
        if (!loop_.usable()) {
            exchange.fail("could not set up libcurl");
            finished_.push_back(&exchange);
        } else if (!idle_.empty()) {
            Connection& connection = *idle_.back();
            idle_.pop_back();
            start_request(connection, exchange);
        } else {
            open(exchange);
        }
    }

    void step(Micros now, std::vector<Exchange*>& done) override {
        if (loop_.usable()) {
            loop_.step(now, [&](const epoll_event& event) {
                on_event(*static_cast<Connection*>(event.data.ptr), event.events);
            });
            loop_.take_finished([&](CURL* easy, CURLcode result) {
                Connection* connection = nullptr;
                curl_easy_getinfo(easy, CURLINFO_PRIVATE, &connection);
                on_connected(*connection, result);
            });
            expire(now);
            // Must come last: events of this round may point to these connections.
            std::erase_if(connections_, [](const auto& connection) {
                return connection->state == Connection::State::dead;
            });
        }
        done.insert(done.end(), finished_.begin(), finished_.end());
        finished_.clear();
    }

  private:
    void open(Exchange& exchange) {
        auto connection = std::make_unique<Connection>(config_);
        connection->easy = curl_easy_init();
        if (connection->easy == nullptr)
            throw std::bad_alloc();
        CURL* easy = connection->easy;
        set_connection_options(easy, config_);
        curl_easy_setopt(easy, CURLOPT_CONNECT_ONLY, 1L);
        connection->address_check.install(easy);
        curl_easy_setopt(easy, CURLOPT_PRIVATE, connection.get());
        curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, connection->error);
        connection->error[0] = '\0';
        connection->exchange = &exchange;
        connections_.push_back(std::move(connection));
        if (std::optional<std::string> why =
                wrong_client_certificate(config_.certificate, config_.private_key, /*tls=*/false))
            lose(*connections_.back(), std::move(*why));
        else if (loop_.add(easy) != CURLM_OK)
            lose(*connections_.back(), "could not start a connection");
    }

    void on_connected(Connection& connection, CURLcode result) {
        // The handle stays in libcurl, because removing it would close the connection.
        curl_socket_t socket = CURL_SOCKET_BAD;
        if (result == CURLE_OK)
            curl_easy_getinfo(connection.easy, CURLINFO_ACTIVESOCKET, &socket);
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.ptr = &connection;
        if (socket == CURL_SOCKET_BAD) {
            connection.exchange->scope = scope_of(result);
            lose(connection, connection.address_check.explain(result, connection.error));
        } else if (epoll_ctl(loop_.epoll(), EPOLL_CTL_ADD, socket, &event) != 0) {
            lose(connection, "could not watch a connection");
        } else {
            connection.socket = socket;
            start_request(connection, *connection.exchange);
        }
    }

    void start_request(Connection& connection, Exchange& exchange) {
        connection.state = Connection::State::busy;
        connection.exchange = &exchange;
        exchange.reached = true;
        connection.response.reset(exchange.keep_body);
        connection.sent = 0;
        connection.deadline = config_.clock.now() + config_.request_timeout;
        connection.head = exchange.method;
        connection.head += ' ';
        connection.head += exchange.target.empty() ? target_ : exchange.target;
        connection.head += fixed_head_;
        connection.head += exchange.content.headers;
        connection.head += "Content-Length: ";
        append_integer(connection.head, static_cast<std::int64_t>(exchange.content.body.size()));
        connection.head += "\r\n\r\n";
        write_some(connection);
    }

    void write_some(Connection& connection) {
        const std::string_view body = connection.exchange->content.body;
        const std::size_t total = connection.head.size() + body.size();
        while (connection.sent < total) {
            iovec parts[2];
            int count = 0;
            auto add = [&](std::string_view part, std::size_t skip) {
                if (skip < part.size())
                    parts[count++] = {const_cast<char*>(part.data()) + skip, part.size() - skip};
            };
            add(connection.head, connection.sent);
            add(body, connection.sent > connection.head.size()
                          ? connection.sent - connection.head.size()
                          : 0);
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = static_cast<std::size_t>(count);
            const ssize_t written =
                sendmsg(connection.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (written < 0 && (errno == EAGAIN || errno == EINTR)) {
                want_write(connection, true);
                return;
            }
            if (written < 0) {
                broken(connection, std::strerror(errno));
                return;
            }
            connection.sent += static_cast<std::size_t>(written);
        }
        want_write(connection, false);
    }

    void want_write(Connection& connection, bool wanted) {
        if (connection.wants_write == wanted)
            return;
        connection.wants_write = wanted;
        epoll_event event{};
        event.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
        event.data.ptr = &connection;
        epoll_ctl(loop_.epoll(), EPOLL_CTL_MOD, connection.socket, &event);
    }

    void on_event(Connection& connection, std::uint32_t events) {
        if (connection.state == Connection::State::dead)
            return;
        if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            read_some(connection);
        if ((events & EPOLLOUT) && connection.state == Connection::State::busy)
            write_some(connection);
    }

    void read_some(Connection& connection) {
        char buffer[16 * 1024];
        const ssize_t size = recv(connection.socket, buffer, sizeof buffer, MSG_DONTWAIT);
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (connection.state == Connection::State::idle) {
            // The peer closed the connection or sent bytes without a request. It cannot be used
            // either way.
            std::erase(idle_, &connection);
            close(connection);
            return;
        }
        if (size < 0) {
            broken(connection, std::strerror(errno));
            return;
        }
        const Http1Response::State state =
            size == 0 ? connection.response.end_of_stream()
                      : connection.response.take({buffer, static_cast<std::size_t>(size)});
        if (state == Http1Response::State::complete)
            answered(connection);
        else if (state == Http1Response::State::malformed)
            broken(connection, size == 0 ? "connection closed before the answer was complete"
                                         : "malformed answer");
    }

    void answered(Connection& connection) {
        Exchange& exchange = *std::exchange(connection.exchange, nullptr);
        exchange.status = connection.response.status();
        exchange.retry_after = connection.response.retry_after();
        exchange.body = connection.response.body();
        finished_.push_back(&exchange);

        const bool request_sent =
            connection.sent == connection.head.size() + exchange.content.body.size();
        connection.deadline = never;
        if (connection.response.keep_alive() && request_sent) {
            connection.state = Connection::State::idle;
            connection.used = true;
            idle_.push_back(&connection);
        } else {
            close(connection);
        }
    }

    // A server may close an idle connection just when we use it. That says nothing about the
    // server, so the request is sent again over a new connection.
    void broken(Connection& connection, const char* why) {
        if (connection.used && !connection.response.begun()) {
            // First: if it throws, the connection still has the request.
            open(*connection.exchange);
            if (connection.sent > 0)
                config_.count_repeats(1, why);
            connection.exchange = nullptr;
            close(connection);
            return;
        }
        lose(connection, why);
    }

    void lose(Connection& connection, std::string why) {
        Exchange& exchange = *std::exchange(connection.exchange, nullptr);
        exchange.fail(std::move(why));
        finished_.push_back(&exchange);
        close(connection);
    }

    void expire(Micros now) {
        for (const auto& connection : connections_) {
            if (now < connection->deadline)
                continue;
            if (connection->response.cut_off() == Http1Response::State::complete)
                answered(*connection);
            else
                lose(*connection, late_answer(config_));
        }
    }

    void close(Connection& connection) {
        if (connection.easy == nullptr)
            return;
        if (connection.socket >= 0)
            epoll_ctl(loop_.epoll(), EPOLL_CTL_DEL, connection.socket, nullptr);
        connection.socket = -1;
        curl_multi_remove_handle(loop_.multi(), connection.easy);
        curl_easy_cleanup(std::exchange(connection.easy, nullptr));
        connection.state = Connection::State::dead;
        connection.deadline = never;
    }

    TransportConfig config_;
    std::string target_;      // unless the request has its own
    std::string fixed_head_;  // the part of every head after the target
    CurlLoop loop_;
    std::vector<std::unique_ptr<Connection>> connections_;
    std::vector<Connection*> idle_;
    std::vector<Exchange*> finished_;
};

}  // namespace

std::unique_ptr<Transport> create_direct_transport(TransportConfig config) {
    return std::make_unique<DirectTransport>(std::move(config));
}

}  // namespace outbox
