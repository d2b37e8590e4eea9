// Options for how to log in to brokers.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "cloud/aws/aws_options.hpp"
#include "core/destination.hpp"

namespace outbox {

struct KafkaLogin {
    std::string mechanism;  // empty if there is no login
    std::string user, password;
    // Where tokens come from with the mechanism OAUTHBEARER.
    std::string token_endpoint, client_id, client_secret, scope;
    std::vector<std::string> token_extensions;  // names and values in turn
    AwsOptions aws;                             // with AWS_MSK_IAM

    bool uses_token() const noexcept {
        return mechanism == "OAUTHBEARER" || mechanism == "AWS_MSK_IAM";
    }
};

std::optional<Error> check_token_endpoint(const OptionSpec& spec, std::string_view value);
std::optional<Error> check_token_extensions(const OptionSpec& spec, std::string_view value);
std::optional<Error> check_region(const OptionSpec& spec, std::string_view value);

inline constexpr OptionSpec sasl_mechanism_option{
    .name = "sasl_mechanism",
    .type = OptionType::choice,
    .choices = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"},
    .description =
        "how to log in: with the user and password of the user mapping, with tokens of an issuer, "
        "or with AWS keys"};
inline constexpr OptionSpec token_endpoint_option{
    .name = "token_endpoint",
    .range = "https URL",
    .description = "with OAUTHBEARER, where the issuer hands out tokens for client credentials",
    .names_host = true,
    .check = check_token_endpoint};
inline constexpr OptionSpec client_id_option{
    .name = "client_id", .description = "with OAUTHBEARER, the client to the issuer"};
inline constexpr OptionSpec scope_option{.name = "scope",
                                         .description = "with OAUTHBEARER, scopes to ask for"};
inline constexpr OptionSpec token_extensions_option{
    .name = "token_extensions",
    .range = "name=value, ...",
    .description = "with OAUTHBEARER, extensions that brokers get beside the token",
    .check = check_token_extensions};
inline constexpr OptionSpec msk_region_option{
    .name = "region",
    .range = "such as eu-west-1",
    .description =
        "with AWS_MSK_IAM, the region of the cluster; needed if the first broker's name "
        "does not contain it",
    .check = check_region};
inline constexpr OptionSpec sasl_user_option{
    .name = "user",
    .place = OptionPlace::user_mapping,
    .description = "user to log in as, with PLAIN and SCRAM"};
inline constexpr OptionSpec sasl_password_option{.name = "password",
                                                 .place = OptionPlace::user_mapping,
                                                 .description = "password of that user",
                                                 .secret = true};
inline constexpr OptionSpec client_secret_option{
    .name = "client_secret",
    .place = OptionPlace::user_mapping,
    .description = "with OAUTHBEARER, secret of the client",
    .secret = true};

// Rules between the options.
std::optional<Error> check_login(const OptionValues& values);

KafkaLogin kafka_login(const Destination& destination);

}  // namespace outbox
