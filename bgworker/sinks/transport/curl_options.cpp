#include "sinks/transport/curl_options.hpp"

namespace outbox {

void set_connection_options(CURL* easy, const TransportConfig& config) {
    curl_easy_setopt(easy, CURLOPT_URL, config.url_text.c_str());
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, config.url.scheme.c_str());
    curl_easy_setopt(easy, CURLOPT_PROXY, "");  // not from the environment of the server
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_2TLS);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // do not wait for a hanging name server
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                     static_cast<long>(config.connect_timeout / 1000));
    if (!config.ca_file.empty())
        curl_easy_setopt(easy, CURLOPT_CAINFO, config.ca_file.c_str());
}

}  // namespace outbox
