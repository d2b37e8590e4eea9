// A transport, the credentials that its requests need, and one descriptor for both.
//
//   use()            must be called first
//   need_...()       says whether requests can be sent, and starts to fetch credentials if not
//   send(), step()   as in Transport and Credentials
#pragma once

#include <memory>
#include <vector>

#include "net/credentials.hpp"
#include "net/exchange.hpp"
#include "net/transport.hpp"

namespace outbox {

// Not thread-safe. Exchanges that were sent must outlive it.
class HttpClient {
  public:
    HttpClient();
    ~HttpClient();
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;

    // `credentials` is nullptr if requests need none, or only fixed ones.
    void use(TransportConfig config, std::unique_ptr<Credentials> credentials,
             CreateTransport create = create_transport);
    // Makes descriptor() readable when this descriptor is. Its owner closes it.
    void watch(int descriptor) noexcept;

    int descriptor() const noexcept { return epoll_; }
    Micros deadline() const noexcept;
    // For an owner that steps only the credentials so far.
    Micros credentials_deadline() const noexcept;

    bool has_credentials() const noexcept { return credentials_ != nullptr; }
    // Returns `ready` if requests need no credentials.
    Credentials::State need_credentials(Micros now);
    Credentials::State step_credentials(Micros now);
    void credentials_rejected() noexcept;
    const std::string& credentials_error() const noexcept { return credentials_->error(); }

    void send(Exchange& exchange) { transport_->send(exchange); }
    // Appends the exchanges that have ended. Credentials are removed from their answers.
    void step(Micros now, std::vector<Exchange*>& done);
    void report(SinkReport& report) noexcept { repeats_.report(report); }

  private:
    const int epoll_;
    Repeats repeats_;
    std::unique_ptr<Credentials> credentials_;
    std::unique_ptr<Transport> transport_;
    std::string secret_;  // in the header that the transport adds to each request, or empty
};

}  // namespace outbox
