#include "relay/configure/connection.hpp"

#include <cstdlib>
#include <string_view>

#include "core/libpq_environment.hpp"
#include "core/text.hpp"

namespace outbox::relay {

static void add_options(LibpqParameters& parameters, const ConnectionOptions& options) {
    for (const PQconninfoOption* option = options.get();
         option != nullptr && option->keyword != nullptr; option++)
        if (option->val != nullptr && option->val[0] != '\0')
            parameters.emplace_back(option->keyword, option->val);
}

static LibpqParameters defaults_of_libpq() {
    LibpqParameters parameters;
    add_options(parameters, ConnectionOptions(PQconndefaults(), &PQconninfoFree));
    // The values of a service are among the others.
    std::erase_if(parameters, [](const auto& one) { return one.first.starts_with("service"); });
    return parameters;
}

static LibpqParameters take_connection_environment() {
    LibpqParameters parameters = defaults_of_libpq();
    forget_libpq_environment();
    return parameters;
}

const LibpqParameters& connection_environment() {
    static const LibpqParameters parameters = take_connection_environment();
    return parameters;
}

ConnectionOptions parse_connection_string(const std::string& text) {
    return {PQconninfoParse(text.c_str(), nullptr), &PQconninfoFree};
}

// PQconndefaults() does not say that there is no such service; an attempt to connect does. It ends at
// once, because its sslmode is invalid.
static std::string error_of_service(const std::string& service) {
    const char* names[] = {"service", "sslmode", nullptr};
    const char* values[] = {service.c_str(), "-", nullptr};
    PGconn* connection = PQconnectStartParams(names, values, 0);
    std::string message = printable(PQerrorMessage(connection));
    PQfinish(connection);
    return message.find("service") != std::string::npos ? message : "";
}

Result<LibpqParameters> parameters_of_service(const std::string& service) {
    if (std::string error = error_of_service(service); !error.empty())
        return Error{ErrorKind::invalid_value, std::move(error)};
    const char* before = std::getenv("PGSERVICE");
    const std::string kept = before != nullptr ? before : "";
    setenv("PGSERVICE", service.c_str(), 1);
    LibpqParameters parameters = defaults_of_libpq();
    if (before != nullptr)
        setenv("PGSERVICE", kept.c_str(), 1);
    else
        unsetenv("PGSERVICE");
    return parameters;
}

// libpq would take a URL for the name of the database if another name came before it, and send it to
// the server, with the password.
ConnectionParameters connection_parameters(const DatabaseConfig& database,
                                           const LibpqParameters& environment,
                                           const std::string& application) {
    LibpqParameters parameters{{"fallback_application_name", application},
                               {"connect_timeout", "10"}};
    const LibpqParameters& defaults = database.service.empty() ? environment : database.service;
    parameters.insert(parameters.end(), defaults.begin(), defaults.end());
    add_options(parameters, parse_connection_string(database.url));
    std::erase_if(parameters, [](const auto& one) { return one.first == "service"; });
    if (!database.password.empty())
        parameters.emplace_back("password", database.password);
    parameters.emplace_back("client_encoding", "UTF8");
    return {std::move(parameters), database.session};
}

LibpqConnection connect(const ConnectionParameters& parameters) {
    return connect_libpq(parameters.libpq, false, SessionRule{SessionKind::relay, parameters.mode});
}

}  // namespace outbox::relay
