// What libpq says about connections, without passwords. libpq quotes parts of connection strings that
// it cannot read, and a server may repeat what it was sent.
//
// There is no source file: not everything that is made of lib/core is linked with libpq.
#pragma once

#include <libpq-fe.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/conceal.hpp"

namespace outbox {

// libpq's own rule: anything else is the name of a database.
inline bool is_connection_string(std::string_view text) noexcept {
    return text.starts_with("postgresql://") || text.starts_with("postgres://") ||
           text.find('=') != std::string_view::npos;
}

// Conceals the passwords of the connection: those of its parameters, and the one that it found in a
// password file.
inline std::string without_passwords(PGconn* connection, std::string text) {
    if (const char* password = PQpass(connection))
        conceal(text, password);
    const std::unique_ptr<PQconninfoOption, void (*)(PQconninfoOption*)> options(
        PQconninfo(connection), PQconninfoFree);
    for (const PQconninfoOption* one = options.get(); one != nullptr && one->keyword != nullptr;
         one++)
        if (one->val != nullptr && std::string_view(one->dispchar) == "*")
            conceal(text, one->val);
    return text;
}

// Replaces PQerrorMessage().
inline std::string error_of(PGconn* connection) {
    // libpq sets its parameters, options among them, once it has read the connection string. Before,
    // nobody knows what is a password in it.
    if (connection != nullptr && PQoptions(connection) == nullptr)
        return "invalid connection string";
    return without_passwords(connection, PQerrorMessage(connection));
}

}  // namespace outbox
