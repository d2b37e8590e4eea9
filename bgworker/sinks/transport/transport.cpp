#include "sinks/transport/transport.hpp"

namespace outbox {

TransportConfig transport_config(const Destination& destination, const Clock& clock,
                                 std::string url_text, Url url, std::size_t max_connections) {
    return {.clock = clock,
            .url_text = std::move(url_text),
            .url = std::move(url),
            .allowed_hosts = destination.allowed_hosts,
            .connect_timeout = destination.connect_timeout,
            .request_timeout = destination.request_timeout,
            .ca_file = destination.ca_file,
            .authorization = "",
            .max_connections = max_connections};
}

std::unique_ptr<Transport> create_transport(TransportConfig config) {
    return config.url.scheme == "https" ? create_curl_transport(std::move(config))
                                        : create_direct_transport(std::move(config));
}

}  // namespace outbox
