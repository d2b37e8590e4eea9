#include "net/address_check.hpp"

#include <sys/socket.h>

#include <memory>

namespace outbox {

// Uses libcurl's parser: where two parsers disagree, an allowed name could hide another host.
static std::string host_of(const std::string& url_text) {
    const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> url(curl_url(), curl_url_cleanup);
    if (url == nullptr)
        throw std::bad_alloc();
    char* host = nullptr;
    if (curl_url_set(url.get(), CURLUPART_URL, url_text.c_str(), 0) != CURLUE_OK ||
        curl_url_get(url.get(), CURLUPART_HOST, &host, 0) != CURLUE_OK)
        return "";  // libcurl will not connect either
    const std::unique_ptr<char, decltype(&curl_free)> owned(host, curl_free);
    return host;
}

AddressCheck::AddressCheck(const TransportConfig& config)
    : config_(config), url_(config.url_text), host_(host_of(url_)) {}

void AddressCheck::use(const std::string& url) {
    if (url == url_)
        return;
    url_ = url;
    host_ = host_of(url_);
}

void AddressCheck::install(CURL* easy) {
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, this);
}

void AddressCheck::reset() noexcept {
    tried_.reset();
    refused_.reset();
}

std::string AddressCheck::explain(CURLcode result, const char* error) const {
    if (refused_ && !tried_)
        return config_.allowed_hosts->refusal(*refused_,
                                              config_.url_text.empty() ? host_ : config_.url.host);
    std::string why = error[0] != '\0' ? error : curl_easy_strerror(result);
    // OpenSSL reads a plain answer as TLS, and then finds one of these errors.
    if (result == CURLE_SSL_CONNECT_ERROR && (why.find("wrong version number") != why.npos ||
                                              why.find("packet length too long") != why.npos))
        return "the port does not speak TLS; is the URL meant to begin with " +
               std::string(config_.plain_scheme) + "://? (" + why + ")";
    return why;
}

bool AddressCheck::allows(const std::optional<Address>& address) const noexcept {
    if (!config_.allowed_hosts)
        return true;
    if (!address)
        return false;
    return config_.allowed_hosts->allows_unreserved(host_, *address);
}

curl_socket_t AddressCheck::open(void* self, curlsocktype, curl_sockaddr* to) noexcept {
    auto* check = static_cast<AddressCheck*>(self);
    const std::optional<Address> address = Address::of(to->addr);
    if (!check->allows(address)) {
        if (!check->refused_)
            check->refused_ = address;
        return CURL_SOCKET_BAD;
    }
    check->tried_ = address;
    check->socket_ = ::socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
    return check->socket_;
}

}  // namespace outbox
