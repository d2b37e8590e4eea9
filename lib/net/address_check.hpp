// Checks each address against outbox.allowed_hosts just before libcurl connects to it. Between the
// check and the connection the name is not resolved again, so a name server cannot change the
// result.
//
// Also keeps the sockets from being inherited by other processes.
#pragma once

#include <curl/curl.h>

#include <optional>
#include <string>

#include "net/transport.hpp"

namespace outbox {

class AddressCheck {
  public:
    explicit AddressCheck(const TransportConfig& config);

    // Must outlive the transfers of the handle, and must not be moved.
    void install(CURL* easy);
    // Sets the URL of the next transfers, if the configuration has none. May throw std::bad_alloc.
    void use(const std::string& url);
    // Must be called before each further transfer.
    void reset() noexcept;

    // Returns the reason why there is no connection. `error` is the text of libcurl, which may be
    // empty.
    std::string explain(CURLcode result, const char* error) const;
    // The host of the URL that is used.
    const std::string& host() const noexcept { return host_; }
    // The allowed address that was last connected to or tried, or std::nullopt.
    const std::optional<Address>& tried() const noexcept { return tried_; }
    // Returns the socket that was opened last, or CURL_SOCKET_BAD. libcurl does not report that it closes
    // a socket: a CURLOPT_CLOSESOCKETFUNCTION must call forget_socket().
    curl_socket_t socket() const noexcept { return socket_; }
    void forget_socket() noexcept { socket_ = CURL_SOCKET_BAD; }

  private:
    static curl_socket_t open(void* self, curlsocktype, curl_sockaddr* address) noexcept;
    bool allows(const std::optional<Address>& address) const noexcept;

    const TransportConfig& config_;
    std::string url_;
    std::string host_;  // in it
    // Written by the callback, which must not allocate.
    std::optional<Address> tried_;  // allowed
    std::optional<Address> refused_;
    curl_socket_t socket_ = CURL_SOCKET_BAD;
};

}  // namespace outbox
