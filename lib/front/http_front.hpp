// The HTTP server of outbox-relay and of outboxctl serve.
//
// cpp-httplib accepts connections, routes requests and writes responses. It reads no byte from a
// client: the connections belong to http_clients.hpp, which bounds their number, size and time, and
// hands over whole requests. All threads block all signals.
#pragma once

#include <httplib.h>

#include <memory>
#include <string>
#include <thread>

#include "front/http_clients.hpp"

namespace outbox {

class HttpFront : public httplib::Server {
  public:
    // What the library sees of a request. What it would do with other headers (ranges, compressed
    // responses, bodies) is of no use to pages of figures.
    enum class Shown { request_line, all };

    HttpFront(Shown shown, const HttpClients::Limits& limits,
              HttpClients::IsQuick is_quick = nullptr);
    ~HttpFront() override;

    // Port 0 is any free one. Returns false if it cannot listen there; errno says why.
    bool listen_at(const std::string& host, int port);
    // Answers from now on, in threads of its own. Routes must have been added.
    void start();
    int port() const noexcept { return port_; }

  private:
    bool process_and_close_socket(socket_t socket) override;
    std::string answer(std::string_view request);
    template <class Self, class Stream>
    static void process(Self& self, Stream& stream);

    const Shown shown_;
    const HttpClients::Limits limits_;
    const HttpClients::IsQuick is_quick_;
    int port_ = 0;
    std::atomic<bool> ended_{false};
    std::unique_ptr<HttpClients> clients_;
    std::thread thread_;  // accepts connections
};

}  // namespace outbox
