// How requests get to the destination and answers back. Two ways, one for each scheme:
//
//   curl_transport    https: libcurl's multi interface, with HTTP/2 where the server offers it
//   direct_transport  http: libcurl connects, the exchange over the connection is ours, which
//                     costs a third per request (docs/performance.md)
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sinks/http/cloudevents.hpp"
#include "sinks/sink.hpp"

namespace outbox {

// One request and what came of it. Owned by the sink; the transport holds it from send() until it
// puts it into `done`.
struct Exchange {
    Batch* batch = nullptr;
    RequestContent content;

    // The answer. status 0: there was none, and `error` says why.
    int status = 0;
    bool reached = false;  // without an answer: the request may have got there
    std::string error;
    std::string retry_after;  // as the header has it; empty: none
    std::string body;         // the beginning of it

    void fail(std::string why) {
        status = 0;
        error = std::move(why);
    }
};

class Transport {
  public:
    virtual ~Transport() = default;
    virtual int descriptor() const noexcept = 0;
    virtual Micros deadline() const noexcept = 0;
    // These may throw std::bad_alloc; the sink sees to it.
    virtual void send(Exchange& exchange) = 0;
    virtual void step(Micros now, std::vector<Exchange*>& done) = 0;
};

// What both need to know.
struct TransportConfig {
    const Destination& destination;
    const Clock& clock;
    std::string authorization;  // the value of the header; empty: none
    std::size_t max_connections;
};

std::unique_ptr<Transport> create_curl_transport(TransportConfig config);
std::unique_ptr<Transport> create_direct_transport(TransportConfig config);

constexpr const char* user_agent = "pg_outbox";

}  // namespace outbox
