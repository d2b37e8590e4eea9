#include "relay/database/environment.hpp"

#include <libpq-fe.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace outbox::relay {

static ConnectionParameters take_connection_environment() {
    ConnectionParameters parameters;
    const std::unique_ptr<PQconninfoOption, void (*)(PQconninfoOption*)> options(PQconndefaults(),
                                                                                 PQconninfoFree);
    for (const PQconninfoOption* option = options.get();
         option != nullptr && option->keyword != nullptr; option++) {
        // The values of a service are among the others.
        const bool names_service = std::string_view(option->keyword).starts_with("service");
        if (option->val != nullptr && option->val[0] != '\0' && !names_service)
            parameters.emplace_back(option->keyword, option->val);
    }
    std::vector<std::string> names;
    for (char** variable = environ; *variable != nullptr; variable++)
        if (const std::string_view text = *variable; text.starts_with("PG"))
            names.emplace_back(text.substr(0, text.find('=')));
    for (const std::string& name : names)
        unsetenv(name.c_str());
    return parameters;
}

const ConnectionParameters& connection_environment() {
    static const ConnectionParameters parameters = take_connection_environment();
    return parameters;
}

}  // namespace outbox::relay
