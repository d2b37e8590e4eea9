// A transport, the credentials that its requests need, and one descriptor for both.
//
//   use()            before anything else
//   need()           whether requests can be made now; begins to fetch credentials if they cannot
//   send(), step()   as those of Transport and Credentials
#pragma once

#include <memory>
#include <vector>

#include "net/credentials.hpp"
#include "net/exchange.hpp"
#include "net/transport.hpp"

namespace outbox {

// One thread. Exchanges that were sent must outlive it.
class HttpClient {
  public:
    HttpClient();
    ~HttpClient();
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;

    // `credentials`: nullptr if requests need none that change.
    void use(TransportConfig config, std::unique_ptr<Credentials> credentials);
    // Makes descriptor() readable when this one is; its owner closes it.
    void watch(int descriptor) noexcept;

    int descriptor() const noexcept { return epoll_; }
    Micros deadline() const noexcept;
    // For an owner that does not step the transport yet.
    Micros credentials_deadline() const noexcept;

    bool has_credentials() const noexcept { return credentials_ != nullptr; }
    // Without credentials requests can always be made.
    Credentials::State need_credentials(Micros now);
    Credentials::State step_credentials(Micros now);
    void credentials_rejected() noexcept;
    const std::string& credentials_error() const noexcept { return credentials_->error(); }

    void send(Exchange& exchange) { transport_->send(exchange); }
    // Appends the exchanges that are done. Their answers do not repeat what the transport or the
    // request proved its sender with.
    void step(Micros now, std::vector<Exchange*>& done);

  private:
    const int epoll_;
    std::unique_ptr<Credentials> credentials_;
    std::unique_ptr<Transport> transport_;
    std::string secret_;  // in what the transport adds to each request; empty if it adds nothing
};

}  // namespace outbox
