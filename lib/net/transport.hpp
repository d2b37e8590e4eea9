// Sends requests to a server and receives the answers. There is one way for each scheme:
//
//   curl_transport    https, and many servers: libcurl's multi interface, with HTTP/2 if the server
//                     offers it
//   direct_transport  http: libcurl connects, and our own code exchanges requests and answers, at a
//                     third of the cost per request (docs/performance.md)
//   http2_transport   https, for many small requests: HTTP/2 in our own code, and libcurl for servers
//                     that have only HTTP/1.1
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
    // These may throw std::bad_alloc.
    virtual void send(Exchange& exchange) = 0;
    virtual void step(Micros now, std::vector<Exchange*>& done) = 0;
};

// The configuration for one server. A transport belongs to one thread, and must be destroyed before
// the objects that its configuration refers to.
struct TransportConfig {
    const Clock& clock;
    // Its path and query are used unless a request has its own. Empty if each request has a URL of
    // its own, http or https; only libcurl's transport can do that.
    std::string url_text;
    Url url;  // the same URL, parsed
    // Addresses that may be connected to. std::nullopt allows all, for URLs that come from the
    // server process itself, such as that of a metadata server.
    std::optional<AllowedHosts> allowed_hosts;
    Micros connect_timeout;
    Micros request_timeout;
    std::string ca_file;                       // empty for the certificates of the system
    std::string certificate{}, private_key{};  // of the client, as PEM; empty if it has none
    // Value of the header; empty if there is none, or if requests bring their own.
    std::string authorization;
    std::size_t max_connections;
    std::string_view plain_scheme = "http";  // of URLs without TLS, for a hint
    Repeats* repeats = nullptr;              // where they are counted, or nullptr

    void count_repeats(std::uint64_t more, std::string_view why) const {
        if (repeats != nullptr && more > 0)
            repeats->add(more, why);
    }
};

// Makes the configuration for `url`, which must be valid, with up to `max_connections` connections.
TransportConfig transport_config(const TransportOptions& options, const Clock& clock,
                                 std::string url, std::size_t max_connections);
// The same for a URL that is parsed already.
TransportConfig transport_config(const TransportOptions& options, const Clock& clock,
                                 std::string text, Url url, std::size_t max_connections);

// Makes the configuration for requests that have URLs of their own.
TransportConfig transport_config_of_many(const TransportOptions& options, const Clock& clock,
                                         std::size_t max_connections);

// Returns the header Host for this URL: with the port, unless it is the default of the scheme.
std::string host_header(const Url& url);

// Returns the path and query of the configuration's URL.
std::string request_target(const TransportConfig& config);

// Returns the error of a request that took too long. Only a destination's limit is its option.
std::string late_answer(const TransportConfig& config);

using CreateTransport = std::unique_ptr<Transport> (*)(TransportConfig config);

// Chooses the transport by the scheme of the URL.
std::unique_ptr<Transport> create_transport(TransportConfig config);

// The same, for destinations with a request for each event.
std::unique_ptr<Transport> create_transport_for_many(TransportConfig config);

std::unique_ptr<Transport> create_curl_transport(TransportConfig config);
std::unique_ptr<Transport> create_direct_transport(TransportConfig config);

constexpr const char* user_agent = "pg_outbox";

// Initializes libcurl. The entry points of modules call it before anything else.
bool initialize_curl() noexcept;

}  // namespace outbox
