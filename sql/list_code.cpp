// Prints the code of SQL files for an upgrade script: functions, views, triggers, event triggers and
// comments, each as a statement that replaces what is there. Tables, sequences and types hold data,
// and an upgrade changes them by hand.
//
//     list_code FILE...
//
// A DO block is code if it has CREATE OR REPLACE in it. A statement of an unknown kind is an error,
// so that none is left out by accident.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "statements.hpp"

namespace {

constexpr std::array replaceable{"FUNCTION ", "VIEW ", "TRIGGER "};
constexpr std::array data{"CREATE TABLE ",    "CREATE UNLOGGED TABLE ",
                          "CREATE INDEX ",    "CREATE UNIQUE INDEX ",
                          "CREATE SEQUENCE ", "CREATE TYPE ",
                          "CREATE DOMAIN ",   "CREATE POLICY ",
                          "CREATE SCHEMA ",   "CREATE FOREIGN DATA WRAPPER ",
                          "INSERT ",          "SELECT ",
                          "SET LOCAL ",       "GRANT ",
                          "REVOKE ",          "DO "};

bool has(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// Returns the statement for an upgrade; empty if it is not code.
std::string code_of(std::string_view statement) {
    constexpr std::string_view create = "CREATE ";
    constexpr std::string_view event_trigger = "CREATE EVENT TRIGGER ";
    const std::string text{statement};
    for (const std::string_view kind : replaceable)
        if (statement.starts_with(std::string(create).append(kind)))
            return "CREATE OR REPLACE " + text.substr(create.size());
    if (statement.starts_with(event_trigger) || statement.starts_with("COMMENT ON ") ||
        statement.starts_with("ALTER EVENT TRIGGER ") ||
        (statement.starts_with("ALTER TABLE ") && has(statement, "ABLE ") &&
         has(statement, " TRIGGER ")) ||
        (statement.starts_with("DO ") && has(statement, "CREATE OR REPLACE ")))
        return text;
    if (statement.starts_with("ALTER TABLE ") && has(statement, " ROW LEVEL SECURITY"))
        return {};
    for (const std::string_view kind : data)
        if (statement.starts_with(kind))
            return {};
    std::fprintf(stderr, "list_code: is this data or code? %s\n", text.c_str());
    std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        std::ifstream file{argv[i]};
        if (!file) {
            std::fprintf(stderr, "list_code: cannot read %s\n", argv[i]);
            return 1;
        }
        const std::string script{std::istreambuf_iterator<char>(file), {}};
        Statements statements{script};
        std::string_view comment;
        std::string_view statement;
        while (statements.next(comment, statement)) {
            const std::string code = code_of(statement);
            if (!code.empty())
                std::printf("%.*s%s", static_cast<int>(comment.size()), comment.data(),
                            code.c_str());
        }
        std::puts("");
    }
}
