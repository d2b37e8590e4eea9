#include "relay/observe/http_server.hpp"

#include <httplib.h>
#include <signal.h>

#include <chrono>
#include <type_traits>
#include <utility>

#include "core/text.hpp"
#include "relay/observe/http_clients.hpp"
#include "relay/observe/pages.hpp"

namespace outbox::relay {

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

class HttpServer::Server final : public httplib::Server {
  public:
    Server(const Settings& settings, const Figures& figures, const Log& log);
    ~Server() override;

    bool bind(const std::string& host);
    void start();
    int port() const noexcept { return port_; }

  private:
    bool process_and_close_socket(socket_t socket) override {
        clients_->add(socket);
        return true;
    }
    std::string answer(std::string_view request_line);
    template <class Self>
    static void process(Self& self, MemoryStream& stream);
    PageContext context() const;
    void add_pages();
    void check_health(httplib::Response& response) const;

    const Settings settings_;
    const Figures& figures_;
    const Log& log_;
    const SystemClock clock_;
    const Micros started_at_ = clock_.now();
    int port_ = 0;
    std::atomic<bool> ended_{false};
    std::unique_ptr<HttpClients> clients_;
    std::thread thread_;
};

HttpServer::Server::Server(const Settings& settings, const Figures& figures, const Log& log)
    : settings_(settings), figures_(figures), log_(log) {
    new_task_queue = [] { return new AtOnce; };
    // Without SO_REUSEPORT, which the library sets: two processes would share a port and take each
    // other's probes.
    set_socket_options([](socket_t socket) {
        const int yes = 1;
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_default_headers({{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}});
    add_pages();
}

bool HttpServer::Server::bind(const std::string& host) {
    if (settings_.port == 0)
        port_ = bind_to_any_port(host);
    else if (bind_to_port(host, settings_.port))
        port_ = settings_.port;
    // The library lets 5 connections wait to be accepted; further clients try again after a second.
    return port_ > 0 && ::listen(svr_sock_, SOMAXCONN) == 0;
}

void HttpServer::Server::start() {
    const SignalsBlocked blocked;
    clients_ = std::make_unique<HttpClients>(
        [this](std::string_view request_line) { return answer(request_line); });
    thread_ = std::thread([this] {
        listen_after_bind();
        ended_ = true;
    });
    while (!is_running() && !ended_)  // stop() has no effect before
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

HttpServer::Server::~Server() {
    if (thread_.joinable()) {
        stop();
        thread_.join();
    }
}

// The library sees the request line only: what it would do with other headers (ranges, compressed
// responses, bodies) is of no use here.
std::string HttpServer::Server::answer(std::string_view request_line) {
    MemoryStream stream(std::string(request_line) + "\r\n\r\n");
    process(*this, stream);
    return stream.take_response();
}

// From version 0.16 on the library wants to be told the addresses. A template, because the other
// call need not compile.
template <class Self>
void HttpServer::Server::process(Self& self, MemoryStream& stream) {
    bool closed = false;
    if constexpr (requires { self.process_request(stream, true, closed, nullptr); })
        self.process_request(stream, true, closed, nullptr);
    else
        self.process_request(stream, "", 0, "", 0, true, closed, nullptr);
}

PageContext HttpServer::Server::context() const {
    return {.name = settings_.name,
            .version = settings_.version,
            .started_at = started_at_,
            .now = clock_.now(),
            .last_beat = figures_.last_beat(),
            .dropped_log_lines = log_.dropped()};
}

void HttpServer::Server::check_health(httplib::Response& response) const {
    const Micros age = clock_.now() - std::max(figures_.last_beat(), started_at_);
    if (age < patience) {
        response.set_content("ok\n", "text/plain");
        return;
    }
    response.status = 503;
    response.set_content("the loop has not turned for " + std::to_string(age / seconds(1)) + " s\n",
                         "text/plain");
}

void HttpServer::Server::add_pages() {
    using httplib::Request, httplib::Response;
    Get("/healthz", [this](const Request&, Response& response) { check_health(response); });
    Get("/readyz", [this](const Request&, Response& response) {
        const std::string reasons = why_not_ready(*figures_.read());
        response.status = reasons.empty() ? 200 : 503;
        response.set_content(reasons.empty() ? "ok\n" : reasons, "text/plain; charset=utf-8");
    });
    Get("/metrics", [this](const Request&, Response& response) {
        response.set_content(metrics_page(*figures_.read(), context()),
                             "application/openmetrics-text; version=1.0.0; charset=utf-8");
    });
    Get("/status", [this](const Request&, Response& response) {
        response.set_content(status_page(*figures_.read(), context()), "application/json");
    });
}

// -------------------------------------------------------------------------------------------------
// HttpServer
// -------------------------------------------------------------------------------------------------

HttpServer::HttpServer(std::unique_ptr<Server> server) : server_(std::move(server)) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const noexcept {
    return server_->port();
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const Settings& settings,
                                                      const Figures& figures, const Log& log) {
    std::vector<std::string> hosts{settings.host};
    if (settings.host.empty())
        hosts = {"::", "0.0.0.0"};  // the first one also takes IPv4, where there is IPv6
    for (const std::string& host : hosts) {
        auto server = std::make_unique<Server>(settings, figures, log);
        if (!server->bind(host))
            continue;
        server->start();
        return std::unique_ptr<HttpServer>(new HttpServer(std::move(server)));
    }
    const std::string reason = std::strerror(errno);
    return Error{ErrorKind::unavailable,
                 "could not listen on \"" + printable(settings.host) + "\", port " +
                     std::to_string(settings.port),
                 reason, "Is another process listening on that port?"};
}

}  // namespace outbox::relay
