#include "relay/configure/destinations.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "sinks/registry.hpp"

namespace outbox::relay {

namespace {

constexpr std::string_view credentials_option = "credentials";

// Takes the option out, because the sink does not know it.
std::optional<std::string> take_option(std::vector<Option>& options, std::string_view name) {
    const auto found = std::find_if(options.begin(), options.end(),
                                    [&](const Option& option) { return option.name == name; });
    if (found == options.end())
        return std::nullopt;
    std::string value = std::move(found->value);
    options.erase(found);
    return value;
}

void replace(std::vector<Option>& options, const std::vector<Option>& by) {
    for (const Option& option : by) {
        take_option(options, option.name);
        options.push_back(option);
    }
}

CredentialScope scope_of(const RelayConfig& config, std::string_view credentials) {
    const auto scope = config.credential_scopes.find(credentials);
    return scope != config.credential_scopes.end() ? scope->second : CredentialScope();
}

}  // namespace

Option option_of(std::string_view text) {
    const std::size_t equals = std::min(text.find('='), text.size());
    return {std::string(text.substr(0, equals)),
            std::string(text.substr(std::min(equals + 1, text.size())))};
}

Result<Destination> make_destination(const DestinationRow& row, DestinationDefaults defaults,
                                     std::string_view database, const RelayConfig& config) {
    std::vector<Option> options = row.options;
    const auto named = take_option(options, credentials_option);
    const auto credentials = config.credentials.find(named ? *named : row.name);
    if (named && credentials == config.credentials.end())
        return Error{ErrorKind::invalid_value,
                     "there are no credentials \"" + printable(*named, 100) + "\"", "",
                     "Write [credentials." + printable(*named, 100) + "] in relay.toml."};

    defaults.user = row.owner;
    for (const DatabaseConfig& one : config.databases)
        if (one.name == database && one.allowed_hosts)
            defaults.allowed_hosts = *one.allowed_hosts;
    Result<Destination> destination =
        parse_destination(row.name, options, row.mapping_options, defaults);
    if (!destination)
        return destination;
    if (const std::string option = file_option(destination.value());
        !row.may_read_files && !option.empty())
        return may_not_name_file(option);
    bool password_required = row.password_required;
    if (credentials != config.credentials.end()) {
        const CredentialScope scope = scope_of(config, credentials->first);
        if (!scope.allows(database, destination.value().url_text))
            return Error{
                ErrorKind::not_allowed,
                "permission denied for credentials \"" + printable(credentials->first, 100) + "\"",
                "",
                "The keys \"databases\" and \"urls\" in relay.toml say which destinations "
                "may use them."};
        password_required = password_required && !scope.machine_identity;
        std::vector<Option> mapping_options = row.mapping_options;
        replace(mapping_options, credentials->second);
        destination = parse_destination(row.name, options, mapping_options, defaults);
        if (!destination)
            return destination;
    }
    destination.value().password_required = password_required;
    return destination;
}

}  // namespace outbox::relay
