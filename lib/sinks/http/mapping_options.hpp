// Options of user mappings that destinations with http(s) share: headers, and keys that sign. Nothing
// here needs a library.
#pragma once

#include <optional>
#include <string_view>

#include "core/option.hpp"
#include "sinks/http/webhook_secret.hpp"

namespace outbox {

std::optional<Error> check_signing_secret(const OptionSpec& spec, std::string_view value);
std::optional<Error> check_signing_key(const OptionSpec& spec, std::string_view value);

inline constexpr std::string_view signing_secret_range = "`whsec_` and 24 to 64 bytes in base64";
inline constexpr std::string_view signing_key_range = "`whsk_` and a key of Ed25519 in base64";

inline constexpr OptionSpec signing_key_option{
    .name = "signing_key",
    .place = OptionPlace::user_mapping,
    .range = signing_key_range,
    .description = "signs each request, as Standard Webhooks does with v1a (Ed25519)",
    .secret = true,
    .secret_mark = webhook_key_mark,
    .check = check_signing_key};
inline constexpr OptionSpec next_signing_key_option{
    .name = "next_signing_key",
    .place = OptionPlace::user_mapping,
    .range = signing_key_range,
    .description = "signs each request as well, while receivers change to its public key",
    .secret = true,
    .secret_mark = webhook_key_mark,
    .check = check_signing_key};

// Headers of each request.
inline constexpr OptionSpec headers_option{
    .name = "headers",
    .place = OptionPlace::user_mapping,
    .type = OptionType::headers,
    .range = "a line `Name: value` each",
    .description = "headers of each request, in place of headers of events with the same name",
    .secret = true};

}  // namespace outbox
