#include "sinks/postgresql/options.hpp"

#include <algorithm>

#include "core/percent.hpp"

namespace outbox {

static constexpr OptionSpec batch_size =
    batch_size_option("1000", "largest number of events in a transaction");
static constexpr OptionSpec consumer{
    .name = "consumer",
    .description = "name of the consumer; if not set, the name of its database"};
static constexpr OptionSpec user{
    .name = "user",
    .place = OptionPlace::user_mapping,
    .description =
        "role to connect as; if not set, the role in the URL, or else the owner of the server"};
static constexpr OptionSpec password{.name = "password",
                                     .place = OptionPlace::user_mapping,
                                     .description = "password of that role",
                                     .secret = true};
static constexpr OptionSpec ssl_cert{.name = "sslcert",
                                     .place = OptionPlace::user_mapping,
                                     .range = "set by superusers only",
                                     .description = "client certificate, a file of the server",
                                     .names_file = NamesFile::yes};
static constexpr OptionSpec ssl_key{
    .name = "sslkey",
    .place = OptionPlace::user_mapping,
    .range = "set by superusers only",
    .description = "key of the client certificate, a file of the server",
    .names_file = NamesFile::yes};
static constexpr std::array options{connect_timeout_option,
                                    request_timeout_option,
                                    batch_size,
                                    consumer,
                                    user,
                                    password,
                                    ssl_cert,
                                    ssl_key};

// Parameters of libpq that the URL may have. Secrets are not allowed, and neither are parameters
// that could point the connection to another place.
static constexpr OptionSpec parameter(std::string_view name, std::string_view description,
                                      NamesFile names_file = NamesFile::no) {
    return {.name = name,
            .place = OptionPlace::url,
            .description = description,
            .names_file = names_file};
}
static constexpr OptionSpec naming_host(std::string_view name, std::string_view description) {
    OptionSpec spec = parameter(name, description);
    spec.names_host = true;
    return spec;
}
static constexpr std::array parameters{
    naming_host("host", "host or socket directory, instead of that in the URL"),
    naming_host("port", "port, instead of that in the URL"),
    parameter("sslmode", "whether TLS is used, and what is verified"),
    parameter("sslrootcert", "file of certificates to trust, or \"system\" (libpq 16)",
              NamesFile::unless_system),
    parameter("sslcrl", "file of revoked certificates", NamesFile::yes),
    parameter("channel_binding", "as in libpq"),
    parameter("gssencmode", "as in libpq"),
    parameter("target_session_attrs", "as in libpq"),
    parameter("keepalives_idle", "as in libpq"),
    parameter("application_name", "as in libpq"),
};

static const OptionSpec* find_parameter(std::string_view name) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const OptionSpec& spec) { return spec.name == name; });
    return found != parameters.end() ? &*found : nullptr;
}

static Error invalid(std::string message, std::string hint) {
    return {ErrorKind::invalid_value, std::move(message), "", std::move(hint)};
}

static std::optional<Error> check_parameter(std::string_view name) {
    if (name == "password")
        return invalid("URL must not contain a password",
                       "Set \"password\" in CREATE USER MAPPING.");
    if (find_parameter(name) != nullptr)
        return std::nullopt;
    std::vector<std::string_view> names;
    for (const OptionSpec& spec : parameters)
        names.push_back(spec.name);
    return invalid("invalid URL parameter \"" + std::string(name) + "\"",
                   "Valid parameters are: " + comma_separated(names) + ".");
}

static std::optional<Error> check_database(const std::string& path) {
    if (path.size() < 2 || path.front() != '/')
        return invalid("URL does not name a database",
                       "Write for example \"postgresql://host/database\", or "
                       "\"postgresql:///database\" for a database of this server.");
    if (!percent_decoded(path))
        return invalid("name of the database is badly encoded",
                       "Percent-encode special characters in it.");
    if (path.find('/', 1) != std::string::npos)
        return invalid("URL does not name a database",
                       "Only the name of a database may follow the host.");
    return std::nullopt;
}

static std::optional<Error> check_url(const Url& url, std::string_view) {
    // libpq would read it as several hosts, but only the first one would be checked.
    const auto is_list = [](const std::string& host) { return host.find(',') != host.npos; };
    bool several_hosts = is_list(url.host);
    for (const auto& [name, value] : url.query) {
        several_hosts |= name == "host" && is_list(value);
        if (std::optional<Error> error = check_parameter(name))
            return error;
    }
    if (several_hosts)
        return invalid("URL names several hosts",
                       "Use a host name that has several addresses; they are tried in turn.");
    return check_database(url.path);
}

static constexpr std::array<std::string_view, 2> schemes{"postgresql", "postgres"};
constinit const SinkDeclaration postgresql_declaration{
    .name = "postgresql",
    .schemes = schemes,
    .url = "postgresql://<host>/<database>",
    .title = "the inbox of a database",
    .order = "of the log",
    .options = options,
    .parameters = parameters,
    .ordered = true,
    .check = "address, connection, TLS, login, and whether the inbox may be sent to",
    .check_url = check_url,
    .module = "pg_outbox_postgresql.so"};

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

static const std::string* find_in(const Url& url, std::string_view name) {
    for (const auto& [key, value] : url.query)
        if (key == name)
            return &value;
    return nullptr;
}

static std::string host_of(const Destination& destination) {
    const std::string* host = find_in(destination.url, "host");
    return host != nullptr                 ? *host
           : !destination.url.host.empty() ? destination.url.host
                                           : destination.defaults.local_host;
}

static std::string port_of(const Destination& destination) {
    const Url& url = destination.url;
    const std::string* port = find_in(url, "port");
    const bool local = url.host.empty() && find_in(url, "host") == nullptr;
    return port != nullptr     ? *port
           : !url.port.empty() ? url.port
           : local             ? destination.defaults.local_port
                               : "5432";
}

static std::string database_of(const Url& url) {
    const std::string_view segment = std::string_view(url.path).substr(1);
    return percent_decoded(segment).value_or(std::string(segment));
}

static std::string role_of(const Destination& destination) {
    const std::string given = destination.options.text(user);
    return !given.empty()         ? given
           : destination.url.user ? *destination.url.user
                                  : destination.defaults.user;
}

PostgresqlOptions postgresql_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    PostgresqlOptions result{.destination = destination.name,
                             .source = destination.source,
                             .consumer = values.text(consumer),
                             .batch_size = values.number(batch_size),
                             .limits = time_limits(destination),
                             .allowed_hosts = destination.allowed_hosts,
                             .host = host_of(destination),
                             .port = port_of(destination),
                             .database = database_of(destination.url),
                             .role = role_of(destination),
                             .parameters = {},
                             .password = values.text(password),
                             .ssl_cert = values.text(ssl_cert),
                             .ssl_key = values.text(ssl_key),
                             .needs_password_because = destination.needs_credentials_because};
    for (const auto& [name, value] : destination.url.query)
        if (name != "host" && name != "port" && !value.empty())
            result.parameters.emplace_back(name, value);
    return result;
}

std::vector<std::string> PostgresqlOptions::files() const {
    std::vector<std::string> files;
    for (const auto& [name, value] : parameters)
        if (const OptionSpec* spec = find_parameter(name);
            spec != nullptr && names_file(*spec, value))
            files.push_back(value);
    for (const std::string* file : {&ssl_cert, &ssl_key})
        if (!file->empty())
            files.push_back(*file);
    return files;
}

}  // namespace outbox
