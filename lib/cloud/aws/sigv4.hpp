// AWS Signature Version 4: what a request proves with that its sender has the secret key.
//
// Our own and not libcurl's, which signs some requests wrongly before 8.10, and which could not
// sign what goes over the direct transport.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"

namespace outbox {

struct AwsKeys {
    std::string access_key_id;
    std::string secret_access_key;
    std::string session_token;  // empty: none, they are long-lived
    Micros expires = never;     // since the Unix epoch
};

struct HeaderField {
    std::string_view name;
    std::string_view value;
};

// A request as far as it is signed.
struct SignedRequest {
    std::string_view method = "POST";
    std::string_view path = "/";  // not percent-encoded
    std::string_view query{};     // percent-encoded, as it is sent
    // All that are signed, Host and X-Amz-Date among them, in any order.
    std::vector<HeaderField> headers{};
    std::string_view body{};
};

class Sigv4 {
  public:
    Sigv4(std::string region, std::string service);

    // The value of the header Authorization. `time` is that of the header X-Amz-Date. May throw
    // std::bad_alloc.
    std::string authorization(const SignedRequest& request, const AwsKeys& keys,
                              std::string_view time);

  private:
    using Digest = std::array<unsigned char, 32>;

    const Digest& signing_key(const std::string& secret, std::string_view day);

    const std::string region_;
    const std::string service_;
    // Derived from the secret, the same for a day.
    std::string secret_, day_;
    Digest signing_key_{};
};

// As X-Amz-Date has it: 20150830T123600Z.
std::string basic_timestamp(Micros unix_time);

// What is hashed of a request; for tests, and to compare with what a service says it should be.
std::string canonical_request(const SignedRequest& request);

}  // namespace outbox
