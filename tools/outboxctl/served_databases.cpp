#include "served_databases.hpp"

#include "core/libpq_error.hpp"
#include "session.hpp"

namespace outboxctl {

std::vector<std::string> served_names(const std::string& database, bool all) {
    if (!all)
        return {""};
    Session session;
    session.unattended = true;
    session.use(database);
    const Result rows = session.query(
        "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate "
        "AND datconnlimit <> -2 ORDER BY 1");  // -2: its DROP was interrupted
    std::vector<std::string> names;
    for (int row = 0; row < rows.rows(); row++)
        names.emplace_back(rows.text(row, 0));
    return names;
}

std::string name_in(const std::string& database) {
    PQconninfoOption* options = PQconninfoParse(database.c_str(), nullptr);
    // One that cannot be read may have a password in it.
    std::string name = outbox::is_connection_string(database) ? "" : database;
    for (const PQconninfoOption* o = options; o != nullptr && o->keyword != nullptr; o++)
        if (o->keyword == std::string("dbname") && o->val != nullptr)
            name = o->val;
    PQconninfoFree(options);
    return name;
}

}  // namespace outboxctl
