// What the sinks that send requests over HTTP share: a request per batch, many side by side, held
// back while credentials are fetched. A sink says what goes into a request and what an answer
// means.
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

  protected:
    RequestSink(const Clock& clock, TransportOptions options);
    // Where requests go. `credentials`: nullptr: none that change. `authorization`: what is added
    // to each request; empty: nothing.
    void use(std::string url, std::unique_ptr<Credentials> credentials,
             std::string authorization = "");

    const Clock& clock() const { return clock_; }
    std::size_t connections() const noexcept { return options_.max_connections; }
    std::size_t more_connections() const noexcept { return options_.more_connections; }

    // Makes the request for `exchange.batch`. A batch that cannot be sent has its outcome at once.
    // May throw std::bad_alloc.
    virtual std::optional<Outcome> encode(Exchange& exchange) = 0;
    // The answer was only a step on the way: makes the request that follows, which is sent with the
    // same exchange, and returns true. May throw std::bad_alloc.
    virtual bool next_request(Exchange&) { return false; }
    // What an answer, or that there is none, means. May throw std::bad_alloc.
    virtual Outcome judge(const Exchange& exchange) = 0;
    // For judge(): the answer was that the credentials are no good.
    void credentials_rejected() noexcept { client_.credentials_rejected(); }

  private:
    void start(Exchange& exchange);
    void start_waiting(Credentials::State state, std::vector<Outcome>& outcomes);
    void give_back(Exchange& exchange) noexcept;
    bool goes_on(Exchange& exchange);

    const Clock& clock_;
    const TransportOptions options_;
    std::vector<Exchange> exchanges_;  // all there are; each is in one of the lists, or under way
    std::vector<Exchange*> spare_;
    std::vector<Exchange*> waiting_;  // for credentials
    std::vector<Exchange*> done_;
    std::vector<Outcome> unsent_;  // room is reserved
    HttpClient client_;            // holds exchanges, so it goes before them
};

}  // namespace outbox
