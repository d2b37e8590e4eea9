#include "net/curl_options.hpp"

#include "core/percent.hpp"
#include "core/small_file.hpp"

namespace outbox {

void set_connection_options(CURL* easy, const TransportConfig& config) {
    const bool has_url = !config.url_text.empty();
    if (has_url)
        curl_easy_setopt(easy, CURLOPT_URL, ascii_url(config.url_text).c_str());
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR,
                     has_url ? config.url.scheme.c_str() : "http,https");
    curl_easy_setopt(easy, CURLOPT_PROXY, "");  // ignore proxies in the environment of the server
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_2TLS);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // do not wait for a name server that hangs
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                     static_cast<long>(config.connect_timeout / 1000));
}

static constexpr std::size_t max_certificates_size = 1024 * 1024;
static constexpr Micros read_again = seconds(10);

// The configuration lives longer than the handle, so nothing is copied.
static void set_client_certificate(CURL* easy, const TransportConfig& config) {
    const auto blob = [](const std::string& text) {
        return curl_blob{const_cast<char*>(text.data()), text.size(), CURL_BLOB_NOCOPY};
    };
    if (config.certificate.empty())
        return;
    curl_blob certificate = blob(config.certificate), key = blob(config.private_key);
    curl_easy_setopt(easy, CURLOPT_SSLCERT_BLOB, &certificate);
    curl_easy_setopt(easy, CURLOPT_SSLKEY_BLOB, &key);
    // Without a passphrase libcurl 7.88 crashes when the key needs one.
    curl_easy_setopt(easy, CURLOPT_KEYPASSWD, "");
}

std::optional<std::string> Certificates::set(CURL* easy) {
    const bool tls = config_.url_text.empty() || config_.url.scheme == "https";
    if (std::optional<std::string> why =
            wrong_client_certificate(config_.certificate, config_.private_key, tls))
        return why;
    set_client_certificate(easy, config_);
    if (config_.ca_file.empty())
        return std::nullopt;
    if (const Micros now = config_.clock.now(); now >= read_again_at_) {
        if (std::optional<std::string> why = read())
            return why;
        read_again_at_ = now + read_again;
    }
    curl_blob blob{text_.data(), text_.size(), CURL_BLOB_COPY};
    const CURLcode result = curl_easy_setopt(easy, CURLOPT_CAINFO_BLOB, &blob);
    if (result != CURLE_OK)  // libcurl would trust the certificates of the system
        return std::string("option \"ca_file\": ") + curl_easy_strerror(result);
    return std::nullopt;
}

std::optional<std::string> Certificates::read() {
    Result<std::string> text = read_small_file(config_.ca_file, max_certificates_size);
    if (!text)
        return "option \"ca_file\": " + text.error().message;
    text_ = std::move(text.value());
    return std::nullopt;
}

}  // namespace outbox
