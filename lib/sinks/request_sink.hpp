// What the sinks that send requests over HTTP share: a request per batch, many side by side, held
// back while credentials are fetched. A sink says what goes into a request and what an answer
// means.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/secrets.hpp"
#include "core/sink.hpp"
#include "core/text.hpp"
#include "net/credentials.hpp"
#include "net/transport.hpp"

namespace outbox {

class RequestSink : public Sink {
  public:
    ~RequestSink() override;

    int descriptor() const noexcept final { return epoll_; }
    Micros deadline() const noexcept final;
    void submit(Batch& batch) final;
    void step(Micros now, std::vector<Outcome>& outcomes) final;

  protected:
    // `connections`: how many requests go side by side unless the destination says otherwise; then
    // some more of them may take the place of requests that hang.
    RequestSink(const SinkContext& context, std::size_t connections);
    // Where requests go. `credentials`: nullptr: none that change. `authorization`: what is added
    // to each request; empty: nothing.
    void use(std::string url, std::unique_ptr<Credentials> credentials,
             std::string authorization = "");

    const Clock& clock() const { return clock_; }
    std::size_t connections() const noexcept { return connections_; }
    std::size_t more_connections() const noexcept { return exchanges_.size() - connections_; }

    // Makes the request for `exchange.batch`. A batch that cannot be sent has its outcome at once.
    // May throw std::bad_alloc.
    virtual std::optional<Outcome> encode(Exchange& exchange) = 0;
    // The answer was only a step on the way: makes the request that follows, which is sent with the
    // same exchange, and returns true. May throw std::bad_alloc.
    virtual bool next_request(Exchange&) { return false; }
    // What an answer, or that there is none, means. May throw std::bad_alloc.
    virtual Outcome judge(const Exchange& exchange) = 0;
    // For judge(): the answer was that the credentials are no good.
    void credentials_rejected() noexcept;

  private:
    void start(Exchange& exchange);
    void start_waiting(Credentials::State state, std::vector<Outcome>& outcomes);
    void give_back(Exchange& exchange) noexcept;
    bool goes_on(Exchange& exchange);

    const Clock& clock_;
    const Destination& destination_;
    int epoll_ = -1;  // of the descriptors of both
    const std::size_t connections_;
    std::unique_ptr<Transport> transport_;
    std::unique_ptr<Credentials> credentials_;
    std::string secret_;               // in what the transport adds; empty: none
    std::vector<Exchange> exchanges_;  // all there are; each is in one of the lists, or under way
    std::vector<Exchange*> spare_;
    std::vector<Exchange*> waiting_;  // for credentials
    std::vector<Exchange*> done_;
    std::vector<Outcome> unsent_;  // room is reserved
};

}  // namespace outbox
