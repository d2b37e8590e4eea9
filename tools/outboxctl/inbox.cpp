#include "commands.hpp"

namespace outboxctl {

void add_inbox_commands(Command app, Session& session) {
    const Command inbox = app.group("inbox", "The consumer's side: pg_inbox");
    add_install_command(inbox, session);
    add_status_commands(inbox, session);
    add_health_commands(inbox, session, consumer);
    add_offset_commands(inbox, session);
    add_dead_letter_commands(inbox, session, consumer);
    add_right_commands(inbox, session);
}

}  // namespace outboxctl
