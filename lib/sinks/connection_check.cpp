#include "sinks/connection_check.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "core/text.hpp"
#include "net/curl_options.hpp"

namespace outbox {

ConnectionCheck::ConnectionCheck(TransportConfig config)
    : config_(std::move(config)),
      address_check_(config_),
      loop_(config_.clock),
      certificates_(config_) {}

ConnectionCheck::~ConnectionCheck() {
    if (easy_ != nullptr) {
        curl_multi_remove_handle(loop_.multi(), easy_);
        curl_easy_cleanup(easy_);
    }
}

bool ConnectionCheck::step(Micros now, std::vector<Finding>& findings) {
    std::optional<CURLcode> result;
    if (!started_) {
        if (const CURLcode code = start(); code != CURLE_OK)
            result = code;
    } else {
        loop_.step(now, [](const epoll_event&) {});
        loop_.take_finished([&](CURL*, CURLcode code) { result = code; });
    }
    if (!result)
        return false;
    for (Finding& finding : conclude(*result))
        findings.push_back(std::move(finding));
    return true;
}

CURLcode ConnectionCheck::start() {
    started_ = true;
    if (!loop_.usable())
        return CURLE_FAILED_INIT;
    easy_ = curl_easy_init();
    if (easy_ == nullptr)
        throw std::bad_alloc();
    set_connection_options(easy_, config_);
    address_check_.install(easy_);
    if (std::optional<std::string> why = certificates_.set(easy_)) {
        why->copy(error_, sizeof error_ - 1);
        return CURLE_SSL_CACERT_BADFILE;
    }
    curl_easy_setopt(easy_, CURLOPT_CONNECT_ONLY, 1L);
    curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, error_);
    curl_easy_setopt(easy_, CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    curl_easy_setopt(easy_, CURLOPT_CLOSESOCKETDATA, this);
    return loop_.add(easy_) == CURLM_OK ? CURLE_OK : CURLE_FAILED_INIT;
}

static bool is_connected(curl_socket_t socket) {
    sockaddr_storage peer;
    socklen_t size = sizeof peer;
    return getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
}

int ConnectionCheck::close_socket(void* self, curl_socket_t socket) noexcept {
    auto* check = static_cast<ConnectionCheck*>(self);
    check->connected_ |= is_connected(socket);
    if (socket == check->address_check_.socket())
        check->address_check_.forget_socket();
    return close(socket);
}

// Since 8.14, libcurl does not say that there was a connection if it has failed. It closes the
// socket before it reports the failure, or later.
bool ConnectionCheck::had_connection() const {
    return connected_ || is_connected(address_check_.socket());
}

// The peer may have ended the connection since.
static bool is_of_tls(CURLcode result) {
    return result == CURLE_SSL_CONNECT_ERROR || result == CURLE_SSL_CERTPROBLEM ||
           result == CURLE_SSL_CIPHER || result == CURLE_PEER_FAILED_VERIFICATION ||
           result == CURLE_SSL_CACERT_BADFILE || result == CURLE_SSL_ISSUER_ERROR;
}

// Adds a finding for each step. Only the last one can have failed.
std::vector<Finding> ConnectionCheck::conclude(CURLcode result) const {
    const std::string& host = config_.url.host;
    const bool https = config_.url.scheme == "https";
    const std::optional<Address>& address = address_check_.tried();

    std::vector<Finding> findings;
    if (address)
        findings.push_back({"address", true, host + " is " + address->text()});
    if (address && (had_connection() || is_of_tls(result)))
        findings.push_back({"connection", true,
                            "port " + (!config_.url.port.empty() ? config_.url.port
                                       : https                   ? "443"
                                                                 : "80")});
    if (result != CURLE_OK) {
        const char* subject = result == CURLE_SSL_CACERT_BADFILE ? "tls"
                              : findings.empty()                 ? "address"
                              : findings.size() == 1             ? "connection"
                                                                 : "tls";
        findings.push_back({subject, false, address_check_.explain(result, error_)});
    } else if (https) {
        findings.push_back({"tls", true, "the certificate is valid for " + host});
    }
    return findings;
}

bool all_ok(const std::vector<Finding>& findings) noexcept {
    return std::all_of(findings.begin(), findings.end(), [](const Finding& f) { return f.ok; });
}

}  // namespace outbox
