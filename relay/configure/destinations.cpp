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

// All that get the credentials must be among those in relay.toml.
std::optional<Error> may_use_credentials(const Destination& destination,
                                         const DatabaseConfig& database,
                                         const std::string& credentials,
                                         const CredentialScope& scope) {
    const OtherHosts others = other_hosts(destination);
    std::string wrong = scope.allows_database(database.name) ? "" : "The database";
    if (!scope.allows_url(destination.url_text, others.in_parameters))
        wrong = "The URL of the destination";
    for (const Option* option : others.options)
        if (!scope.allows_url(option->value))
            wrong = "The option \"" + option->name + '"';
    if (wrong.empty())
        return std::nullopt;
    return Error{ErrorKind::not_allowed,
                 "permission denied for credentials \"" + printable(credentials, 100) + "\"",
                 wrong + " is not among those that may have them.",
                 "The keys \"databases\" and \"urls\" in relay.toml say which destinations may use "
                 "them."};
}

// Where a database is described, and trusted.
std::string section_of(const DatabaseConfig& database) {
    return "[databases." + printable(database.name) + "] of relay.toml";
}

std::string line_of_trust(const DatabaseConfig& database) {
    return "trusted = true in " + section_of(database);
}

std::optional<Error> may_name_files(const Destination& destination, const DestinationRow& row,
                                    const DatabaseConfig& database) {
    const std::string option = file_option(destination);
    if (option.empty() || (row.may_read_files && database.trusted))
        return std::nullopt;
    if (!row.may_read_files)
        return may_not_name_file(option);
    return Error{ErrorKind::not_allowed,
                 "permission denied to name a file of this machine in \"" + option + '"',
                 "outbox-relay does not trust the database.",
                 "Name the file in [credentials.NAME], or write " + line_of_trust(database) + '.'};
}

std::string why_credentials(const DestinationRow& row, const DatabaseConfig& database) {
    if (row.password_required)
        return std::string(owner_is_no_superuser);
    if (!database.trusted)
        return "outbox-relay does not trust the database (write " + line_of_trust(database) + ')';
    return "";
}

// A trusted database has no limit but its own, unless relay.toml has one.
void limit_hosts(AllowedHosts& hosts, const DatabaseConfig& database) {
    if (database.trusted && !database.allowed_hosts)
        return;
    // The setting was checked.
    HostList limit = HostList::parse(database.allowed_hosts.value_or("")).value();
    hosts.limit_to(std::move(limit), section_of(database));
}

}  // namespace

Error too_powerful(const DatabaseConfig& database, const std::string& role,
                   const std::string& power) {
    return {
        ErrorKind::not_allowed,
        "role \"" + printable(role, 63) + "\" " + printable(power, 100) +
            ", and outbox-relay does not trust the database",
        "The owner of the database could run code with these rights.",
        "CREATE ROLE outbox_relay LOGIN; SELECT outbox.grant_relay('outbox_relay'); and connect as "
        "this role. Or write " +
            line_of_trust(database) + '.'};
}

Option option_of(std::string_view text) {
    const std::size_t equals = std::min(text.find('='), text.size());
    return {std::string(text.substr(0, equals)),
            std::string(text.substr(std::min(equals + 1, text.size())))};
}

Result<Destination> make_destination(const DestinationRow& row, DestinationDefaults defaults,
                                     const DatabaseConfig& database, const RelayConfig& config) {
    std::vector<Option> options = row.options;
    const auto named = take_option(options, credentials_option);
    const auto credentials = config.credentials.find(named ? *named : row.name);
    if (named && credentials == config.credentials.end())
        return Error{ErrorKind::invalid_value,
                     "there are no credentials \"" + printable(*named, 100) + "\"", "",
                     "Write [credentials." + printable(*named, 100) + "] in relay.toml."};

    defaults.user = row.owner;
    Result<Destination> destination =
        parse_destination(row.name, options, row.mapping_options, defaults);
    if (!destination)
        return destination;
    if (std::optional<Error> error = may_name_files(destination.value(), row, database))
        return *error;
    bool needs_credentials = true;
    if (credentials != config.credentials.end()) {
        const CredentialScope scope = scope_of(config, credentials->first);
        if (std::optional<Error> error =
                may_use_credentials(destination.value(), database, credentials->first, scope))
            return *error;
        needs_credentials = !scope.machine_identity;
        std::vector<Option> mapping_options = row.mapping_options;
        replace(mapping_options, credentials->second);
        destination = parse_destination(row.name, options, mapping_options, defaults);
        if (!destination)
            return destination;
    }
    if (needs_credentials)
        destination.value().needs_credentials_because = why_credentials(row, database);
    limit_hosts(destination.value().allowed_hosts, database);
    return destination;
}

}  // namespace outbox::relay
