#include "sinks/kafka/login_options.hpp"

#include <algorithm>

#include "cloud/aws/aws_region.hpp"
#include "cloud/cloud_url.hpp"
#include "core/text.hpp"

namespace outbox {

std::optional<Error> check_token_endpoint(const OptionSpec& spec, std::string_view value) {
    const Result<Url> url = Url::parse(value);
    if (url && url.value().scheme == "https" && !url.value().host.empty() && !url.value().user)
        return std::nullopt;
    return invalid_option_value(
        spec.name, "Write a URL that begins with https: the request has the client's secret.");
}

// Returns names and values in turn, or std::nullopt if the list is malformed (RFC 7628, section
// 3.1).
static std::optional<std::vector<std::string>> parse_extensions(std::string_view list) {
    std::vector<std::string> parts;
    while (!list.empty()) {
        const std::string_view pair = list.substr(0, list.find(','));
        list.remove_prefix(std::min(list.size(), pair.size() + 1));
        const std::size_t equals = pair.find('=');
        const std::string_view name = trim(pair.substr(0, equals));
        const bool is_name =
            !name.empty() && name != "auth" && std::all_of(name.begin(), name.end(), [](char c) {
                return ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z';
            });
        if (equals == std::string_view::npos || !is_name)
            return std::nullopt;
        const std::string_view value = trim(pair.substr(equals + 1));
        if (!std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c < 0x7f; }))
            return std::nullopt;
        parts.emplace_back(name);
        parts.emplace_back(value);
    }
    return parts;
}

std::optional<Error> check_token_extensions(const OptionSpec& spec, std::string_view value) {
    const auto parts = parse_extensions(value);
    if (parts && !parts->empty())
        return std::nullopt;
    return invalid_option_value(
        spec.name, "Write for example \"logicalCluster=lkc-1, identityPoolId=pool-2\".");
}

std::optional<Error> check_region(const OptionSpec& spec, std::string_view value) {
    if (is_cloud_name(value, "-"))
        return std::nullopt;
    return invalid_option_value(spec.name, "Write a region, such as \"eu-west-1\".");
}

// Brokers are called "b-1.<cluster>.kafka.<region>.<domain of AWS>", or "kafka-serverless".
static std::string region_in(std::string_view host) {
    for (const std::string_view service : {".kafka.", ".kafka-serverless."}) {
        const std::size_t at = host.find(service);
        if (at == std::string_view::npos)
            continue;
        const std::string_view rest = host.substr(at + service.size());
        const std::string_view region = rest.substr(0, rest.find('.'));
        if (is_cloud_name(region, "-") && rest.starts_with(regional_domain(region)))
            return std::string(region);
    }
    return "";
}

static std::string region_of(const OptionValues& values, std::string_view host) {
    return values.has(msk_region_option) ? values.text(msk_region_option) : region_in(host);
}

static Error invalid(const OptionSpec& spec, std::string_view what, std::string hint) {
    std::string message = "option \"";
    message.append(spec.name).append("\" ").append(what);
    return {ErrorKind::invalid_value, std::move(message), "", std::move(hint)};
}

std::optional<Error> check_login(const OptionValues& values) {
    const std::string mechanism = values.text(sasl_mechanism_option);
    const bool has_tokens = mechanism == "OAUTHBEARER", has_keys = mechanism == "AWS_MSK_IAM";
    for (const OptionSpec* spec : {&token_endpoint_option, &client_id_option})
        if (has_tokens && !values.has(*spec))
            return invalid(*spec, "is required",
                           "With sasl_mechanism OAUTHBEARER set \"token_endpoint\", \"client_id\" "
                           "and, in CREATE USER MAPPING, \"client_secret\".");
    for (const OptionSpec* spec :
         {&token_endpoint_option, &client_id_option, &scope_option, &token_extensions_option})
        if (!has_tokens && values.has(*spec))
            return invalid(*spec, "has no effect here",
                           "Set the option \"sasl_mechanism\" to \"OAUTHBEARER\".");
    if (!has_keys && values.has(msk_region_option))
        return invalid(msk_region_option, "has no effect here",
                       "Set the option \"sasl_mechanism\" to \"AWS_MSK_IAM\".");
    const Result<Url> url = Url::parse(values.text(url_option), Url::Hosts::list);
    if (has_keys && url && region_of(values, url.value().host).empty())
        return invalid(msk_region_option, "is required",
                       "The name of the first broker does not contain the region of the cluster.");
    return std::nullopt;
}

KafkaLogin kafka_login(const Destination& destination) {
    const OptionValues& values = destination.options;
    return {.mechanism = values.text(sasl_mechanism_option),
            .user = values.text(sasl_user_option),
            .password = values.text(sasl_password_option),
            .token_endpoint = values.text(token_endpoint_option),
            .client_id = values.text(client_id_option),
            .client_secret = values.text(client_secret_option),
            .scope = values.text(scope_option),
            .token_extensions = parse_extensions(values.text(token_extensions_option))
                                    .value_or(std::vector<std::string>()),
            .aws = {.region = region_of(values, destination.url.host),
                    .account = "",
                    .endpoint = "",
                    .access_key_id = values.text(access_key_id_option),
                    .secret_access_key = values.text(secret_access_key_option),
                    .session_token = values.text(session_token_option),
                    .profile = values.text(profile_option),
                    .needs_credentials_because = destination.needs_credentials_because}};
}

}  // namespace outbox
