#include "commands.hpp"

namespace outboxctl {

void add_inbox_commands(CLI::App& app, Session& session) {
    CLI::App* inbox = app.add_subcommand("inbox", "The consumer's side: pg_inbox");
    inbox->require_subcommand(1);
    add_install_command(*inbox, session);
    add_status_commands(*inbox, session);
    add_offset_commands(*inbox, session);
    add_dead_letter_commands(*inbox, session);
    add_right_commands(*inbox, session);
}

}  // namespace outboxctl
