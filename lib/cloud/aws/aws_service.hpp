// SQS or SNS in one region: where it is, what requests call a queue or a topic there, and how requests
// are signed.
#pragma once

#include <string>
#include <string_view>

#include "cloud/aws/aws_options.hpp"
#include "cloud/aws/batch_answer.hpp"
#include "cloud/aws/sigv4.hpp"
#include "net/exchange.hpp"

namespace outbox {

// What the two differ in beside their protocol.
struct AwsTraits {
    std::string_view name;   // in addresses and signatures
    std::string_view title;  // in messages
    std::string_view place;  // where events go
    std::string_view content_type;
    std::size_t most_bytes;  // of a message, and of all in a request
    std::size_t longest_name;
};

class AwsService {
  public:
    AwsService(AwsKind kind, const AwsOptions& options);

    const AwsTraits& traits() const noexcept { return traits_; }
    const std::string& url() const noexcept { return url_; }  // without a slash at its end
    // "queue "orders"", at the beginning of an error: a destination may have many.
    std::string subject(std::string_view name) const;
    // What requests call it: a URL, or an ARN. Empty: only the service knows.
    std::string address_of(std::string_view name) const;

    // Makes the headers of a request whose body stands in the buffer. `action`: of SQS; that of SNS
    // stands in the body.
    void sign(Exchange& exchange, const AwsKeys& keys, Micros unix_now,
              std::string_view action = {});

    AwsFailure failure_in(std::string_view body) const;
    // One line about an answer that is no success. Whoever repeats the session token, be it as a
    // part of what he says should have been signed, is not quoted.
    static std::string describe(const Exchange& exchange, AwsFailure failure, const AwsKeys& keys);

  private:
    const AwsKind kind_;
    const AwsTraits& traits_;
    const std::string region_, account_;
    std::string url_;
    std::string host_;
    Sigv4 signature_;
};

}  // namespace outbox
