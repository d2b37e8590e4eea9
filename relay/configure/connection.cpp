#include "relay/configure/connection.hpp"

#include <string_view>

#include "core/libpq_environment.hpp"

namespace outbox::relay {

static void add_options(ConnectionParameters& parameters, const ConnectionOptions& options) {
    for (const PQconninfoOption* option = options.get();
         option != nullptr && option->keyword != nullptr; option++)
        if (option->val != nullptr && option->val[0] != '\0')
            parameters.emplace_back(option->keyword, option->val);
}

static ConnectionParameters take_connection_environment() {
    ConnectionParameters parameters;
    add_options(parameters, ConnectionOptions(PQconndefaults(), &PQconninfoFree));
    // The values of a service are among the others.
    std::erase_if(parameters, [](const auto& one) { return one.first.starts_with("service"); });
    forget_libpq_environment();
    return parameters;
}

const ConnectionParameters& connection_environment() {
    static const ConnectionParameters parameters = take_connection_environment();
    return parameters;
}

ConnectionOptions parse_connection_string(const std::string& text) {
    return {PQconninfoParse(text.c_str(), nullptr), &PQconninfoFree};
}

// libpq would take a URL for the name of the database if another name came before it, and send it to
// the server, with the password.
ConnectionParameters connection_parameters(const DatabaseConfig& database,
                                           const ConnectionParameters& environment,
                                           const std::string& application) {
    ConnectionParameters parameters{{"fallback_application_name", application},
                                    {"connect_timeout", "10"}};
    parameters.insert(parameters.end(), environment.begin(), environment.end());
    add_options(parameters, parse_connection_string(database.url));
    if (!database.password.empty())
        parameters.emplace_back("password", database.password);
    parameters.emplace_back("client_encoding", "UTF8");
    return parameters;
}

PGconn* connect(const ConnectionParameters& parameters) {
    std::vector<const char*> names, values;
    for (const auto& [name, value] : parameters) {
        names.push_back(name.c_str());
        values.push_back(value.c_str());
    }
    names.push_back(nullptr);
    values.push_back(nullptr);
    return PQconnectdbParams(names.data(), values.data(), 0);
}

}  // namespace outbox::relay
