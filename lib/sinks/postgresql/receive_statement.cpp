#include "sinks/postgresql/receive_statement.hpp"

#include <string_view>

#include "sinks/postgresql/connection.hpp"

namespace outbox {

std::string explain_missing_inbox(const PGconn* connection, const PGresult* result) {
    const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const std::string_view code = state != nullptr ? state : "";
    std::string text = one_line(PQresultErrorMessage(result));
    if (code == "3F000" || code == "42883")
        text += " (run CREATE EXTENSION pg_inbox in the destination)";
    else if (code == "42501")
        text += std::string(" (run SELECT inbox.grant_send('") + PQuser(connection) +
                "') in the destination)";
    return text;
}

}  // namespace outbox
