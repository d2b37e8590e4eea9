// The commands, group by group. These functions only declare commands and their options. Callbacks
// do the work after the command line has been parsed.
#pragma once

#include <string>

#include "command.hpp"
#include "session.hpp"

namespace outboxctl {

void add_backfill_commands(Command app, Session& session);
void add_destination_commands(Command app, Session& session);
void add_doctor_command(Command app, Session& session);
void add_edition_command(Command app, Session& session);
void add_event_commands(Command app, Session& session);
void add_inbox_commands(Command app, Session& session);
void add_migrate_command(Command app, Session& session);
void add_serve_command(Command app, Session& session);
void add_top_command(Command app, Session& session);

// pg_outbox, or pg_inbox: its schema, and those that events go to there.
struct Side {
    const char* schema;
    const char* receiver;
};
inline constexpr Side producer{"outbox", "destination"};
inline constexpr Side consumer{"inbox", "consumer"};

// Commands of both sides.
void add_dead_letter_commands(Command group, Session& session, Side side);
void add_health_commands(Command group, Session& session, Side side);

// Parts of add_inbox_commands().
void add_install_command(Command inbox, Session& session);
void add_offset_commands(Command inbox, Session& session);
void add_status_commands(Command inbox, Session& session);
void add_right_commands(Command inbox, Session& session);

}  // namespace outboxctl
