#include "commands.hpp"

namespace outboxctl {

namespace {

struct Listing {
    std::string consumer;
    int limit = 100;
};

void add_dead_letters(CLI::App& group, Session& session) {
    add_command<Listing>(
        group, "dead-letters", "Lists events that were given up, the oldest first.",
        "  outboxctl inbox dead-letters\n"
        "  outboxctl inbox dead-letters catalog --limit 1000 --json\n",
        [](CLI::App& command, Listing& listing) {
            command.add_option("consumer", listing.consumer, "Only for this consumer");
            command.add_option("--limit", listing.limit, "Highest number of events")
                ->check(CLI::PositiveNumber)
                ->capture_default_str();
        },
        [&session](const Listing& listing) {
            session.list(
                "consumer, event_id, event_type, ordering_key, attempts, died_at, "
                "sqlstate, error",
                "FROM inbox.dead_letter WHERE $1 IN ('', consumer) "
                "ORDER BY died_at, event_id LIMIT $2",
                {listing.consumer, std::to_string(listing.limit)});
        });
}

struct Decision {
    std::string consumer, why;
    std::vector<std::string> ids;
    bool all = false;

    Parameter chosen() const { return all ? Parameter() : '{' + CLI::detail::join(ids, ",") + '}'; }
};

std::string counted(const Result& result, const std::string& what) {
    const std::string number(result.text(0, 0));
    return number + (number == "1" ? " dead letter " : " dead letters ") + what;
}

void add_redrive(CLI::App& group, Session& session) {
    add_command<Decision>(
        group, "redrive", "Processes dead letters again, with all their attempts.",
        "  outboxctl inbox redrive catalog 019a5c1e-8d3c-7c3e-9d0a-2f6f3c1b7e55\n"
        "  outboxctl inbox redrive catalog --all --why 'handler is fixed'\n",
        [](CLI::App& command, Decision& decision) {
            command.add_option("consumer", decision.consumer)->required();
            auto* ids = command.add_option("event_id", decision.ids, "Events to redrive");
            command.add_flag("--all", decision.all, "All of the consumer")->excludes(ids);
            command.add_option("--why", decision.why, "Stored in inbox.operation");
        },
        [&session](const Decision& decision) {
            if (!decision.all && decision.ids.empty())
                throw CLI::RequiredError("event_id, or --all");
            session.report("SELECT inbox.redrive($1, $2::uuid[], nullif($3, '')) AS redriven",
                           {decision.consumer, decision.chosen(), decision.why},
                           [](const Result& result) { return counted(result, "redriven"); });
        });
}

void add_discard(CLI::App& group, Session& session) {
    add_command<Decision>(
        group, "discard", "Gives up dead letters for good.",
        "  outboxctl inbox discard catalog 019a5c1e-8d3c-7c3e-9d0a-2f6f3c1b7e55 --why 'test "
        "data'\n",
        [](CLI::App& command, Decision& decision) {
            command.add_option("consumer", decision.consumer)->required();
            command.add_option("event_id", decision.ids, "Events to discard")->required();
            command.add_option("--why", decision.why, "Stored in inbox.operation")->required();
        },
        [&session](const Decision& decision) {
            session.report("SELECT inbox.discard($1, $2::uuid[], $3) AS discarded",
                           {decision.consumer, decision.chosen(), decision.why},
                           [](const Result& result) { return counted(result, "discarded"); });
        });
}

}  // namespace

void add_dead_letter_commands(CLI::App& inbox, Session& session) {
    add_dead_letters(inbox, session);
    add_redrive(inbox, session);
    add_discard(inbox, session);
}

}  // namespace outboxctl
