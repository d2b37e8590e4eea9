#include "cloud/aws/aws_options.hpp"

namespace outbox {

bool is_aws_account(std::string_view text) noexcept {
    return text.size() == 12 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

static std::string account_in(const Url& url) {
    return url.path.empty() ? "" : url.path.substr(1);
}

std::optional<Error> check_aws_url(const Url& url, std::string_view example, bool needs_account) {
    if (std::optional<Error> error = check_cloud_url(url, "region", example, aws_url_parameters))
        return error;
    const std::string account = account_in(url);
    if (account.empty() ? !needs_account : is_aws_account(account))
        return std::nullopt;
    return Error{ErrorKind::invalid_value, "URL does not name an account", "",
                 "Write the twelve digits of the account behind the region, as in "
                 "\"sns://eu-west-1/123456789012\"."};
}

AwsOptions aws_options(const Destination& destination) {
    const OptionValues& options = destination.options;
    return {.region = destination.url.host,
            .account = account_in(destination.url),
            .endpoint = url_parameter(destination.url, endpoint_parameter),
            .access_key_id = options.text(access_key_id_option),
            .secret_access_key = options.text(secret_access_key_option),
            .session_token = options.text(session_token_option),
            .profile = options.text(profile_option),
            .needs_credentials_because = destination.needs_credentials_because};
}

}  // namespace outbox
