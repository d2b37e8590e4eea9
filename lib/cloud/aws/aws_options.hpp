// Options of AWS services: their address, and the keys to sign with. Nothing here needs a library.
#pragma once

#include <optional>
#include <string>

#include "cloud/cloud_url.hpp"
#include "core/destination.hpp"

namespace outbox {

enum class AwsKind { sqs, sns, kinesis, eventbridge };

struct AwsOptions {
    std::string region;
    std::string account;   // twelve digits; empty for the account of the keys
    std::string endpoint;  // replaces the address of the service; may be empty

    // If there are neither keys nor a profile, the keys come from the platform of the process.
    std::string access_key_id, secret_access_key, session_token;
    std::string profile;
    // If not empty: why they must not.
    std::string needs_credentials_because{};
};

inline constexpr OptionSpec access_key_id_option{.name = "access_key_id",
                                                 .place = OptionPlace::user_mapping,
                                                 .description = "id of an access key"};
inline constexpr OptionSpec secret_access_key_option{.name = "secret_access_key",
                                                     .place = OptionPlace::user_mapping,
                                                     .description = "secret of that access key",
                                                     .secret = true};
inline constexpr OptionSpec session_token_option{
    .name = "session_token",
    .place = OptionPlace::user_mapping,
    .description = "session token, if the key is temporary",
    .secret = true};
inline constexpr OptionSpec profile_option{
    .name = "profile",
    .place = OptionPlace::user_mapping,
    .range = "set by superusers only",
    .description = "profile in the shared credentials file of the server",
    .names_file = NamesFile::yes};
inline constexpr std::array aws_key_options{access_key_id_option, secret_access_key_option,
                                            session_token_option, profile_option};
inline constexpr std::array aws_url_parameters{endpoint_parameter};

bool is_aws_account(std::string_view text) noexcept;

// Checks "<scheme>://<region>[/<account>][?endpoint=<URL>]".
std::optional<Error> check_aws_url(const Url& url, std::string_view example, bool needs_account);

// The options of a destination with such a URL.
AwsOptions aws_options(const Destination& destination);

}  // namespace outbox
