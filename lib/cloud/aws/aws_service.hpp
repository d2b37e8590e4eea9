// SQS, SNS, Kinesis or EventBridge in one region: its address, the names of queues, topics, streams and
// event buses in requests, and the signing of requests.
#pragma once

#include <string>
#include <string_view>

#include "cloud/aws/aws_options.hpp"
#include "cloud/aws/batch_answer.hpp"
#include "cloud/aws/sigv4.hpp"
#include "net/exchange.hpp"

namespace outbox {

// The differences between them, besides their protocols.
struct AwsTraits {
    std::string_view name;      // in addresses and signatures
    std::string_view title;     // in messages
    std::string_view place;     // where events go: "queue", "topic", "stream" or "event bus"
    std::string_view resource;  // the beginning of a name in an ARN
    std::string_view action;    // the beginning of X-Amz-Target; empty if the body names the action
    std::string_view content_type;
    std::size_t max_entries;  // in a request
    std::size_t max_bytes;    // of all entries of a request
    std::size_t max_name;     // of a queue, topic, stream or event bus
};

class AwsService {
  public:
    AwsService(AwsKind kind, const AwsOptions& options);

    const AwsTraits& traits() const noexcept { return traits_; }
    const std::string& url() const noexcept { return url_; }  // without a slash at the end
    // Returns "queue "orders"", the beginning of an error: a destination may have many queues.
    std::string subject(std::string_view name) const;
    // Returns the name in requests: a URL or an ARN, or for Kinesis and EventBridge the name itself if
    // the account is that of the keys. It is empty if only the service knows it.
    std::string address_of(std::string_view name) const;

    // Makes the headers of a request whose body is in the buffer. SNS has the action in the body.
    void sign(Exchange& exchange, const AwsKeys& keys, Micros unix_now,
              std::string_view action = {});

    AwsFailure failure_in(std::string_view body) const;
    // Describes an answer that is not a success, in one line, without the session token: the answer
    // may repeat it, because it is part of what was signed.
    static std::string describe(const Exchange& exchange, const AwsFailure& failure);

  private:
    const AwsKind kind_;
    const AwsTraits& traits_;
    const std::string region_, account_;
    std::string url_;
    std::string host_;
    Sigv4 signature_;
};

}  // namespace outbox
