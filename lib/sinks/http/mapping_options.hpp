// Options of user mappings that destinations with http(s) share: headers, and secrets that sign.
// Nothing here needs a library.
#pragma once

#include <optional>
#include <string_view>

#include "core/option.hpp"
#include "sinks/http/webhook_secret.hpp"

namespace outbox {

std::optional<Error> check_signing_secret(const OptionSpec& spec, std::string_view value);

inline constexpr std::string_view signing_secret_range = "`whsec_` and 24 to 64 bytes in base64";

// Headers of each request.
inline constexpr OptionSpec headers_option{
    .name = "headers",
    .place = OptionPlace::user_mapping,
    .type = OptionType::headers,
    .range = "a line `Name: value` each",
    .description = "headers of each request, in place of headers of events with the same name",
    .secret = true};

}  // namespace outbox
