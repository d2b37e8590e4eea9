// Options for the identity that Google's services see. Nothing here needs a library.
#pragma once

#include <string>

#include "core/destination.hpp"

namespace outbox {

struct GoogleOptions {
    // The first of these that is not empty counts. If all are empty, the identity comes from the
    // platform of the process.
    std::string token;
    std::string key;                          // text of the key file of a service account
    std::string key_file;                     // path of such a file
    std::string needs_credentials_because{};  // empty: they may be those of the platform
};

// A key has several lines, so it may contain control characters. The sink parses it.
std::optional<Error> check_google_key(const OptionSpec& spec, std::string_view value);

inline constexpr OptionSpec google_token_option{
    .name = "token",
    .place = OptionPlace::user_mapping,
    .description = "access token, sent as it is; replace it before it expires",
    .secret = true};
inline constexpr OptionSpec google_key_option{
    .name = "key",
    .place = OptionPlace::user_mapping,
    .range = "JSON",
    .description = "text of the key file of a service account",
    .secret = true,
    .check = check_google_key};
inline constexpr OptionSpec google_key_file_option{
    .name = "key_file",
    .place = OptionPlace::user_mapping,
    .range = "set by superusers only",
    .description = "path of that key file on the server",
    .names_file = NamesFile::yes};
inline constexpr std::array google_key_options{google_token_option, google_key_option,
                                               google_key_file_option};

// The options of a destination.
GoogleOptions google_options(const Destination& destination);

}  // namespace outbox
