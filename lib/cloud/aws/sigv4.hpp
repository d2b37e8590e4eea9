// AWS Signature Version 4. It proves that the sender of a request has the secret key.
//
// This is our own code and not libcurl's CURLOPT_AWS_SIGV4, for two reasons. Over plain http
// libcurl only connects (net/direct_transport.cpp), so it has nothing to sign. And libcurl 7.88
// (Debian 12) signs some requests wrongly. These were measured against a verifier of our own; in
// brackets is the version that fixes each:
//
// * a header that is removed, such as "Expect:" in curl_transport.cpp, is signed but not sent
//   (8.3.0)
// * a query that is not sorted (8.3.0), or that has a name without a value (8.5.0)
// * a path with percent-encoded characters (8.9.0)
// * headers where one name is the beginning of another (8.10.0)
//
// Requests to SQS and SNS meet only the first one: they are POSTs to "/" without a query. So this
// code can be dropped when the oldest supported libcurl is 8.3 (8.10 for other services) and all
// requests go through libcurl's multi interface. Today the oldest one is 7.85, which also signs a
// port in Host wrongly (7.86.0).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"

namespace outbox {

struct AwsKeys {
    std::string access_key_id;
    std::string secret_access_key;
    std::string session_token;  // empty for long-lived keys
    Micros expires = never;     // since the Unix epoch
};

struct HeaderField {
    std::string_view name;
    std::string_view value;
};

// The signed parts of a request.
struct SignedRequest {
    std::string_view method = "POST";
    std::string_view path = "/";  // not percent-encoded
    std::string_view query{};     // percent-encoded, as it is sent
    // All signed headers, Host and X-Amz-Date included, in any order.
    std::vector<HeaderField> headers{};
    std::string_view body{};
};

class Sigv4 {
  public:
    Sigv4(std::string region, std::string service);

    // Returns the value of the header Authorization. `time` is the value of X-Amz-Date. May throw
    // std::bad_alloc.
    std::string authorization(const SignedRequest& request, const AwsKeys& keys,
                              std::string_view time);
    // Returns the query of a request that is signed in its query, and valid for `lifetime` seconds.
    std::string presigned_query(SignedRequest request, const AwsKeys& keys, std::string_view time,
                                std::int64_t lifetime);

  private:
    using Digest = std::array<unsigned char, 32>;

    std::string scope(std::string_view day) const;
    std::string signature(const std::string& canonical, const AwsKeys& keys, std::string_view time);
    const Digest& signing_key(const std::string& secret, std::string_view day);

    const std::string region_;
    const std::string service_;
    // Derived from the secret; the same for a day.
    std::string secret_, day_;
    Digest signing_key_{};
};

// Returns the value of X-Amz-Date: 20150830T123600Z.
std::string basic_timestamp(Micros unix_time);

// Returns the text that is hashed. For tests, and to compare with the text in a service's answer.
std::string canonical_request(const SignedRequest& request);

}  // namespace outbox
