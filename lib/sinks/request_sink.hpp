// The common part of sinks over HTTP: one request per batch, many at the same time, held back while
// credentials are fetched. A derived class makes requests and judges answers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sink.hpp"
#include "net/http_client.hpp"

namespace outbox {

class RequestSink : public Sink {
  public:
    int descriptor() const noexcept final { return client_.descriptor(); }
    Micros deadline() const noexcept final;
    void submit(Batch& batch) final;
    void step(Micros now, std::vector<Outcome>& outcomes) final;
    bool report(SinkReport& report) final;

  protected:
    RequestSink(const Clock& clock, TransportOptions options);
    // Sets the URL of requests. `credentials` is nullptr if there are none, or only fixed ones.
    // `authorization` is added to each request unless it is empty.
    void use(std::string url, std::unique_ptr<Credentials> credentials,
             std::string authorization = "", CreateTransport create = create_transport);

    const Clock& clock() const { return clock_; }
    std::size_t connections() const noexcept { return options_.max_connections; }
    std::size_t more_connections() const noexcept { return options_.more_connections; }

    // Makes the request for `exchange.batch`. If the batch cannot be sent, returns its outcome. May
    // throw std::bad_alloc.
    virtual std::optional<Outcome> encode(Exchange& exchange) = 0;
    // If the answer was only an intermediate step, makes the next request, which is sent with the
    // same exchange, and returns true. May throw std::bad_alloc.
    virtual bool next_request(Exchange&) { return false; }
    // Judges an answer, or a missing answer. May throw std::bad_alloc.
    virtual Outcome judge(const Exchange& exchange) = 0;
    // For judge(): the answer rejected the credentials.
    void credentials_rejected() noexcept { client_.credentials_rejected(); }

  private:
    void start(Exchange& exchange);
    void start_waiting(Credentials::State state, std::vector<Outcome>& outcomes);
    void give_back(Exchange& exchange) noexcept;
    bool goes_on(Exchange& exchange);

    const Clock& clock_;
    const TransportOptions options_;
    std::vector<Exchange> exchanges_;  // all exchanges; each is in one of the lists, or under way
    std::vector<Exchange*> spare_;
    std::vector<Exchange*> waiting_;  // for credentials
    std::vector<Exchange*> done_;
    std::vector<Outcome> unsent_;  // with reserved capacity
    HttpClient client_;            // refers to exchanges, so it must be destroyed first
};

}  // namespace outbox
