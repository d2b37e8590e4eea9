// Checks whether a server can be reached: an address that is allowed, a connection, and TLS with
// https. Sends nothing over the connection.
#pragma once

#include <curl/curl.h>

#include "core/check.hpp"
#include "net/address_check.hpp"
#include "net/curl_loop.hpp"
#include "net/curl_options.hpp"
#include "net/transport.hpp"

namespace outbox {

class ConnectionCheck final : public Check {
  public:
    explicit ConnectionCheck(TransportConfig config);
    ~ConnectionCheck() override;

    int descriptor() const noexcept override { return loop_.epoll(); }
    Micros deadline() const noexcept override { return started_ ? loop_.deadline() : 0; }
    bool step(Micros now, std::vector<Finding>& findings) override;

  private:
    CURLcode start();
    std::vector<Finding> conclude(CURLcode result) const;
    static int close_socket(void* self, curl_socket_t socket) noexcept;
    bool had_connection() const;

    const TransportConfig config_;
    // loop_ writes these when it closes the last socket.
    AddressCheck address_check_;
    bool connected_ = false;
    CurlLoop loop_;
    Certificates certificates_;
    CURL* easy_ = nullptr;
    bool started_ = false;
    char error_[CURL_ERROR_SIZE] = "";
};

// True if no finding is bad.
bool all_ok(const std::vector<Finding>& findings) noexcept;

}  // namespace outbox
