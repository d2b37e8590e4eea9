// How requests get to a server and answers back. Two ways, one for each scheme:
//
//   curl_transport    https: libcurl's multi interface, with HTTP/2 where the server offers it
//   direct_transport  http: libcurl connects, the exchange over the connection is ours, which
//                     costs a third per request (docs/performance.md)
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/allowed_hosts.hpp"
#include "core/clock.hpp"
#include "core/url.hpp"
#include "net/exchange.hpp"
#include "net/transport_options.hpp"

namespace outbox {

class Transport {
  public:
    virtual ~Transport() = default;
    virtual int descriptor() const noexcept = 0;
    virtual Micros deadline() const noexcept = 0;
    // These may throw std::bad_alloc; the caller sees to it.
    virtual void send(Exchange& exchange) = 0;
    virtual void step(Micros now, std::vector<Exchange*>& done) = 0;
};

// One server. A transport is for one thread, and must go before what it refers to.
struct TransportConfig {
    const Clock& clock;
    std::string url_text;  // where to connect; its path and query unless a request has its own
    Url url;               // the same, taken apart
    // Which addresses may be connected to; nothing: any, because the server process itself knows
    // the URL, as that of a metadata server.
    std::optional<AllowedHosts> allowed_hosts;
    Micros connect_timeout;
    Micros request_timeout;
    std::string ca_file;        // empty: the system's
    std::string authorization;  // the value of the header; empty: none, or in the requests
    std::size_t max_connections;
};

// Connects to `url`, which is one, with up to `max_connections`.
TransportConfig transport_config(const TransportOptions& options, const Clock& clock,
                                 std::string url, std::size_t max_connections);

// The header Host of requests to this URL: with the port, unless its scheme implies it.
std::string host_header(const Url& url);

// By the scheme of the URL.
std::unique_ptr<Transport> create_transport(TransportConfig config);

std::unique_ptr<Transport> create_curl_transport(TransportConfig config);
std::unique_ptr<Transport> create_direct_transport(TransportConfig config);

constexpr const char* user_agent = "pg_outbox";

// For the entry points of modules: libcurl may be used from now on.
bool initialize_curl() noexcept;

}  // namespace outbox
