#include "commands.hpp"

namespace outboxctl {

namespace {

struct Consumer {
    std::string name;
};

void add_view(CLI::App& group, Session& session, const std::string& view, const std::string& help,
              const std::string& columns) {
    add_command<Consumer>(
        group, view, help,
        "  outboxctl inbox " + view + "\n  outboxctl inbox " + view + " catalog --json\n",
        [](CLI::App& command, Consumer& consumer) {
            command.add_option("consumer", consumer.name, "Only for this consumer");
        },
        [&session, view, columns](const Consumer& consumer) {
            session.list(columns,
                         "FROM inbox." + view + " WHERE $1 IN ('', consumer) ORDER BY consumer",
                         {consumer.name});
        });
}

struct NoArguments {};

void add_health(CLI::App& group, Session& session) {
    add_command<NoArguments>(
        group, "health", "Lists problems with hints; prints nothing if all is well.",
        "  outboxctl inbox health\n"
        "  outboxctl inbox health --json\n",
        [](CLI::App&, NoArguments&) {},
        [&session](const NoArguments&) { session.list("*", "FROM inbox.health()"); });
}

}  // namespace

void add_status_commands(CLI::App& inbox, Session& session) {
    add_view(inbox, session, "status", "Shows the state of every consumer.",
             "consumer, role, state, processed, failures, pending_at_most, oldest_pending_age, "
             "waiting_keys, latency_p99, last_error");
    add_view(inbox, session, "lag", "Shows how far consumers are behind.", "*");
    add_health(inbox, session);
}

}  // namespace outboxctl
