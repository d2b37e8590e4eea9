#include "commands.hpp"
#include "listing.hpp"

namespace outboxctl {

void add_status_commands(Command inbox, Session& session) {
    add_listing(inbox, session,
                {.command = "status",
                 .help = "Shows the state of every consumer.",
                 .columns = "consumer, role, state, processed, failures, pending_at_most, "
                            "oldest_pending_age, waiting_keys, latency_p99, last_error",
                 .from = "inbox.status",
                 .key = "consumer"});
    add_listing(inbox, session,
                {.command = "lag",
                 .help = "Shows how far consumers are behind.",
                 .columns = "*",
                 .from = "inbox.lag",
                 .key = "consumer"});
}

}  // namespace outboxctl
