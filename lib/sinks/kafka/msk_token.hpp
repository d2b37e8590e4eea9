// Makes tokens for Amazon MSK without a request: each is an encoded URL that is signed with AWS
// keys.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cloud/aws/sigv4.hpp"
#include "sinks/kafka/token.hpp"

namespace outbox {

// Returns the token, which is valid for 15 minutes from `unix_time`.
std::string sign_msk_token(const std::string& region, const AwsKeys& keys, Micros unix_time);

// May throw std::bad_alloc.
std::unique_ptr<TokenSource> msk_token(const KafkaOptions& options, const Clock& clock);

}  // namespace outbox
