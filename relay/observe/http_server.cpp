#include "relay/observe/http_server.hpp"

#include <cstring>
#include <utility>

#include "core/text.hpp"
#include "front/http_front.hpp"
#include "relay/observe/pages.hpp"

namespace outbox::relay {

class HttpServer::Server {
  public:
    Server(const Settings& settings, const Figures& figures, const Log& log);

    bool listen_at(const std::string& host) { return front_.listen_at(host, settings_.port); }
    void start() { front_.start(); }
    int port() const noexcept { return front_.port(); }

  private:
    PageContext context() const;
    void add_pages();
    void check_health(httplib::Response& response) const;

    const Settings settings_;
    const Figures& figures_;
    const Log& log_;
    const SystemClock clock_;
    const Micros started_at_ = clock_.now();
    HttpFront front_;  // ends first
};

HttpServer::Server::Server(const Settings& settings, const Figures& figures, const Log& log)
    : settings_(settings), figures_(figures), log_(log), front_({}, {}) {
    front_.set_default_headers(
        {{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}});
    add_pages();
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
    front_.Get("/healthz", [this](const Request&, Response& response) { check_health(response); });
    front_.Get("/readyz", [this](const Request&, Response& response) {
        const std::string reasons = why_not_ready(*figures_.read());
        response.status = reasons.empty() ? 200 : 503;
        response.set_content(reasons.empty() ? "ok\n" : reasons, "text/plain; charset=utf-8");
    });
    front_.Get("/metrics", [this](const Request&, Response& response) {
        response.set_content(metrics_page(*figures_.read(), context()),
                             "application/openmetrics-text; version=1.0.0; charset=utf-8");
    });
    front_.Get("/status", [this](const Request&, Response& response) {
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
        if (!server->listen_at(host))
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
