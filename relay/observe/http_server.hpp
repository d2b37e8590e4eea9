// The HTTP server of outbox-relay: /healthz, /readyz, /metrics, /status. It reads the figures and
// nothing else, and answers GET and HEAD.
//
// Its connections are bounded in number, size and time (lib/front/http_front.hpp).
#pragma once

#include <memory>
#include <string>

#include "core/result.hpp"
#include "relay/observe/figures.hpp"
#include "relay/observe/log.hpp"

namespace outbox::relay {

class HttpServer {
  public:
    // /healthz fails when the loop has not turned for this long.
    static constexpr Micros patience = seconds(10);

    struct Settings {
        std::string host;  // all addresses of the machine if empty
        int port = 0;      // 0 for any free one
        std::string name;  // of the process
        std::string version;
    };

    // `figures` and `log` must outlive the server.
    static Result<std::unique_ptr<HttpServer>> start(const Settings& settings,
                                                     const Figures& figures, const Log& log);
    ~HttpServer();

    int port() const noexcept;

  private:
    class Server;
    explicit HttpServer(std::unique_ptr<Server> server);
    std::unique_ptr<Server> server_;
};

}  // namespace outbox::relay
