#include "relay/configure/load.hpp"

#include <unistd.h>

#include <algorithm>

#include "core/text.hpp"
#include "relay/configure/connection.hpp"
#include "relay/configure/settings.hpp"

namespace outbox::relay {

namespace {

// -------------------------------------------------------------------------------------------------
// Layers
// -------------------------------------------------------------------------------------------------

class Loader {
  public:
    Loader(const Arguments& arguments, const Environment& environment, Errors& errors)
        : arguments_(arguments), environment_(environment), errors_(errors) {}

    RelayConfig load();

  private:
    std::string path_of_file() const;
    Values from_environment(std::span<const Setting> settings, bool of_database) const;
    Values checked(Values values, std::span<const Setting> settings);
    bool is_on(const char* variable);
    void set_process(RelayConfig& config, const Values& file);
    void add_database(RelayConfig& config, const std::string& name, const Values& values,
                      const std::string& place);
    void read_url(DatabaseConfig& database, const std::string& url, const std::string& origin);
    void check_name(const std::string& name);
    void add_databases(RelayConfig& config, const FileContents& file, const std::string& path);

    void wrong(std::string message, std::string detail = "", std::string hint = "") {
        errors_.push_back(
            {ErrorKind::invalid_value, std::move(message), std::move(detail), std::move(hint)});
    }

    const Arguments& arguments_;
    const Environment& environment_;
    Errors& errors_;
};

const Given* find(const Values& values, const char* name) {
    const auto found = values.find(name);
    return found != values.end() ? &found->second : nullptr;
}

std::string text_or(const Values& values, const char* name, const std::string& otherwise) {
    const Given* given = find(values, name);
    return given != nullptr ? given->value : otherwise;
}

Micros duration_or(const Values& values, const char* name, Micros otherwise) {
    const Given* given = find(values, name);
    return given != nullptr ? parse_duration(given->value).value() : otherwise;
}

std::optional<Micros> duration_of(const Values& values, const char* name) {
    const Given* given = find(values, name);
    return given != nullptr ? std::optional(parse_duration(given->value).value()) : std::nullopt;
}

std::string Loader::path_of_file() const {
    if (!arguments_.config.empty())
        return arguments_.config;
    const char* path = environment_("OUTBOX_CONFIG");
    return path != nullptr ? path : "";
}

// An empty variable counts as not set, because many tools cannot unset one.
Values Loader::from_environment(std::span<const Setting> settings, bool of_database) const {
    Values values;
    for (const Setting& setting : settings) {
        const std::string variable = variable_of(setting.spec.name, of_database);
        const char* value = environment_(variable.c_str());
        if (value != nullptr && *value != '\0')
            values[std::string(setting.spec.name)] = {value, variable, false};
    }
    return values;
}

Values merged(Values first, Values second) {
    first.merge(std::move(second));
    return first;
}

// Leaves out what is wrong.
Values Loader::checked(Values values, std::span<const Setting> settings) {
    for (const Setting& setting : settings) {
        const auto given = values.find(setting.spec.name);
        if (given == values.end())
            continue;
        const bool is_unusable = given->second.is_unusable;
        std::optional<Error> error = check_value(setting.spec, given->second.value);
        if (error && !is_unusable)
            wrong(given->second.origin + ": " + error->message, std::move(error->detail),
                  std::move(error->hint));
        if (error || is_unusable)
            values.erase(given);
    }
    return values;
}

// -------------------------------------------------------------------------------------------------
// The process
// -------------------------------------------------------------------------------------------------

std::string default_name() {
    char host[256] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    const std::string pid = '-' + std::to_string(getpid());
    return printable(host, 63 - pid.size()) + pid;
}

LogLevel log_level(std::string_view name) {
    return name == "error"     ? LogLevel::error
           : name == "warning" ? LogLevel::warning
           : name == "debug"   ? LogLevel::debug
                               : LogLevel::info;
}

bool Loader::is_on(const char* variable) {
    const char* value = environment_(variable);
    const std::string_view text = value != nullptr ? value : "";
    if (!text.empty() && text != "on" && text != "off")
        wrong(std::string(variable) + ": invalid value", "", "Write \"on\" or \"off\".");
    return text == "on";
}

void Loader::set_process(RelayConfig& config, const Values& file) {
    const Values values = checked(
        merged(arguments_.process, merged(from_environment(process_settings(), false), file)),
        process_settings());
    config.name = text_or(values, "name", default_name());
    config.lease = duration_or(values, "lease", config.lease);
    config.shutdown_timeout = duration_or(values, "shutdown_timeout", config.shutdown_timeout);
    config.memory = parse_memory(text_or(values, "memory", "")).value_or(config.memory);
    config.listen = text_or(values, "listen", "");
    config.tracing.endpoint = text_or(values, "otlp_endpoint", "");
    config.tracing.headers_file = text_or(values, "otlp_headers_file", "");
    config.log_format =
        text_or(values, "log_format", "text") == "json" ? LogFormat::json : LogFormat::text;
    config.log_level = log_level(text_or(values, "log_level", "info"));
    config.once = arguments_.once || is_on("OUTBOX_ONCE");
    config.check = arguments_.check || is_on("OUTBOX_CHECK");
}

// -------------------------------------------------------------------------------------------------
// Databases
// -------------------------------------------------------------------------------------------------

void Loader::read_url(DatabaseConfig& database, const std::string& url, const std::string& origin) {
    database.url = url;
    const ConnectionOptions options = parse_connection_string(url);
    if (options == nullptr)
        wrong(origin + ": invalid connection string", "",
              "Write postgresql://role@host:port/database, or host=… dbname=… user=….");
    else if (origin.starts_with("--") && !libpq_value(options.get(), "password").empty())
        wrong(origin + ": password on the command line",
              "Other users of the machine can read the command line.",
              "Use OUTBOX_DATABASE_PASSWORD, PGPASSFILE, or \"password\" in relay.toml.");
    const std::string service = libpq_value(options.get(), "service");
    if (service.empty())
        return;
    Result<LibpqParameters> parameters = parameters_of_service(service);
    if (parameters)
        database.service = std::move(parameters.value());
    else
        wrong(origin + ": " + parameters.error().message);
}

void Loader::check_name(const std::string& name) {
    if (name.empty() || name.size() > 63 || printable(name) != name)
        wrong("invalid name of a database: \"" + printable(name, 63) + "\"", "",
              "Write at most 63 bytes of UTF-8 without control characters.");
}

void Loader::add_database(RelayConfig& config, const std::string& name, const Values& given,
                          const std::string& place) {
    const Values values = checked(given, database_settings());
    check_name(name);
    DatabaseConfig database;
    database.name = name;
    const Given* url = find(values, "url");
    if (url != nullptr)
        read_url(database, url->value, url->origin);
    else if (find(given, "url") == nullptr)
        wrong(place + ": \"url\" is required", "",
              "Write for example url = \"postgresql://relay@db.example.com/orders\".");
    database.password = text_or(values, "password", "");
    database.destinations = split_list(text_or(values, "destinations", "*"));
    const std::string session = text_or(values, "session", "auto");
    database.session = session == "direct"   ? SessionMode::direct
                       : session == "pooled" ? SessionMode::pooled
                                             : SessionMode::automatic;
    database.connections =
        static_cast<std::size_t>(*parse_integer(text_or(values, "connections", "2")));
    database.poll_min = duration_of(values, "poll_min");
    database.poll_max = duration_of(values, "poll_max");
    database.identity = text_or(values, "identity", "");
    database.trusted = text_or(values, "trusted", "off") == "on";
    if (const Given* hosts = find(values, "allowed_hosts"))
        database.allowed_hosts = hosts->value;
    if (database.poll_min && database.poll_max && *database.poll_min > *database.poll_max)
        wrong(place + ": \"poll_min\" is longer than \"poll_max\"");
    config.databases.push_back(std::move(database));
}

void Loader::add_databases(RelayConfig& config, const FileContents& file, const std::string& path) {
    for (const auto& [name, values] : file.databases)
        add_database(config, name, values, path + ": [databases." + printable(name, 63) + "]");

    const Values alone = merged(arguments_.database, from_environment(database_settings(), true));
    if (file.databases.empty() && find(alone, "url") != nullptr) {
        add_database(config, "database", alone, "OUTBOX_DATABASE_URL");
    } else if (!alone.empty() && !file.databases.empty()) {
        wrong(alone.begin()->second.origin + " is about a database without a section",
              path + " has sections [databases.NAME].", "Set it there, or remove these sections.");
    } else if (file.databases.empty() && errors_.empty()) {
        wrong("there is no database to serve", "",
              "Write [databases.NAME] in relay.toml and give its path with --config, or set "
              "OUTBOX_DATABASE_URL.");
    }
}

RelayConfig Loader::load() {
    const std::string path = path_of_file();
    FileContents file;
    if (!path.empty())
        file = read_toml(path, environment_, errors_);
    RelayConfig config;
    set_process(config, file.process);
    add_databases(config, file, path);
    config.credentials = std::move(file.credentials);
    config.credential_scopes = std::move(file.credential_scopes);
    return config;
}

}  // namespace

std::vector<std::string> split_list(std::string_view list) {
    std::vector<std::string> elements;
    while (!list.empty()) {
        const std::size_t comma = std::min(list.find(','), list.size());
        elements.emplace_back(trim(list.substr(0, comma)));
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return elements;
}

RelayConfig load_config(const Arguments& arguments, const Environment& environment,
                        Errors& errors) {
    return Loader(arguments, environment, errors).load();
}

}  // namespace outbox::relay
