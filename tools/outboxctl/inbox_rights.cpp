#include "commands.hpp"

namespace outboxctl {

struct Right {
    std::string name, role;
};

// `verb` is the beginning of the function's name: grant for inbox.grant_send(role) and so on.
static void add(Command group, Session& session, const std::string& verb, const std::string& help,
                const std::string& example, const std::string& done) {
    add_command<Right>(
        group, verb, help, example,
        [](Command command, Right& right) {
            command.argument("right", right.name)
                .required()
                .one_of({"consume", "monitor", "operate", "read", "send"});
            command.argument("role", right.role).required();
        },
        [&session, verb, done](const Right& right) {
            session.report("SELECT $2::text AS \"right\", $1::text AS role FROM inbox." + verb +
                               '_' + right.name + "(quote_ident($1::text)::regrole)",
                           {right.role, right.name}, [&](const Result&) {
                               return "right to " + right.name + ' ' + done + ' ' + right.role;
                           });
        });
}

void add_right_commands(Command inbox, Session& session) {
    add(inbox, session, "grant", "Grants a right to the inbox (docs/security.md).",
        "  outboxctl inbox grant consume catalog\n", "granted to");
    add(inbox, session, "revoke", "Revokes a right to the inbox.",
        "  outboxctl inbox revoke consume catalog\n", "revoked from");
}

}  // namespace outboxctl
