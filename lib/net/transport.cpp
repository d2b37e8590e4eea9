#include "net/transport.hpp"

#include <curl/curl.h>

#include "core/late.hpp"
#include "core/percent.hpp"

namespace outbox {

TransportConfig transport_config(const TransportOptions& options, const Clock& clock,
                                 std::string url, std::size_t max_connections) {
    Url parsed = Url::parse(url).value();
    return transport_config(options, clock, std::move(url), std::move(parsed), max_connections);
}

TransportConfig transport_config(const TransportOptions& options, const Clock& clock,
                                 std::string text, Url url, std::size_t max_connections) {
    return {.clock = clock,
            .url_text = std::move(text),
            .url = std::move(url),
            .allowed_hosts = options.allowed_hosts,
            .connect_timeout = options.connect_timeout,
            .request_timeout = options.request_timeout,
            .ca_file = options.ca_file,
            .certificate = options.certificate,
            .private_key = options.private_key,
            .authorization = "",
            .max_connections = max_connections,
            .plain_scheme = "http"};
}

TransportConfig transport_config_of_many(const TransportOptions& options, const Clock& clock,
                                         std::size_t max_connections) {
    return transport_config(options, clock, "", Url{}, max_connections);
}

std::string host_header(const Url& url) {
    const bool is_implied = url.port.empty() || (url.scheme == "https" && url.port == "443");
    const bool is_ipv6 = url.host.find(':') != std::string::npos;
    return (is_ipv6 ? "[" + url.host + "]" : url.host) + (is_implied ? "" : ":" + url.port);
}

std::string request_target(const TransportConfig& config) {
    const std::size_t query = config.url_text.find('?');
    return ascii_url((config.url.path.empty() ? "/" : config.url.path) +
                     (query == std::string::npos ? "" : config.url_text.substr(query)));
}

std::string late_answer(const TransportConfig& config) {
    return config.allowed_hosts ? no_answer_within(config.request_timeout)
                                : "no answer within " + duration_text(config.request_timeout);
}

std::unique_ptr<Transport> create_transport(TransportConfig config) {
    return config.url.scheme == "https" ? create_curl_transport(std::move(config))
                                        : create_direct_transport(std::move(config));
}

bool initialize_curl() noexcept {
    static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
    return initialized == CURLE_OK;
}

}  // namespace outbox
