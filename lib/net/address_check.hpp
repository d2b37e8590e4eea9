// Asks outbox.allowed_hosts about each address just before libcurl connects to it: between the
// check and the connection there is no name server that could say something else.
//
// Also keeps the sockets from other processes.
#pragma once

#include <curl/curl.h>

#include <optional>
#include <string>

#include "net/transport.hpp"

namespace outbox {

class AddressCheck {
  public:
    explicit AddressCheck(const TransportConfig& config);

    // Must outlive the handle's transfers, at this place.
    void install(CURL* easy);
    // Before each further one.
    void reset() noexcept;

    // Why there is no connection; `error`: what libcurl wrote, if anything.
    std::string explain(CURLcode result, const char* error) const;
    // The address that was last connected to, or tried; nothing: none is known, or none is allowed.
    const std::optional<Address>& tried() const noexcept { return tried_; }

  private:
    static curl_socket_t open(void* self, curlsocktype, curl_sockaddr* address) noexcept;
    bool allows(const std::optional<Address>& address) const noexcept;

    const TransportConfig& config_;
    std::string host_;
    // What the callback saw, which must not allocate.
    std::optional<Address> tried_;  // one that is allowed
    std::optional<Address> refused_;
};

}  // namespace outbox
