// The HTTP server of outbox-relay and of outboxctl serve.
//
// cpp-httplib routes requests and writes responses. It has no socket: the connections belong to
// http_clients.hpp, which bounds their number, size and time, and hands over whole requests. All threads
// block all signals.
#pragma once

#include <httplib.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "front/http_clients.hpp"

namespace outbox {

class HttpFront : private httplib::Server {
  public:
    // The library sees the request line, the body, and fields with these names. What it would do with
    // others is of no use here, and has a cost: a list of ranges makes an answer of any size.
    using Fields = std::vector<std::string_view>;

    HttpFront(Fields shown, const HttpClients::Limits& limits,
              HttpClients::IsQuick is_quick = nullptr);
    ~HttpFront() override;

    using httplib::Server::Get;
    using httplib::Server::Post;
    using httplib::Server::set_default_headers;
    using httplib::Server::set_post_routing_handler;

    // Port 0 is any free one. Returns false if it cannot listen there; errno says why.
    bool listen_at(const std::string& host, int port);
    // Answers from now on, in threads of its own. Routes must have been added.
    void start();
    int port() const noexcept { return port_; }

  private:
    std::string answer(std::string_view request);
    template <class Self, class Stream>
    static void process(Self& self, Stream& stream);

    const Fields shown_;
    const HttpClients::Limits limits_;
    const HttpClients::IsQuick is_quick_;
    int listener_ = -1;
    int port_ = 0;
    std::unique_ptr<HttpClients> clients_;
};

}  // namespace outbox
