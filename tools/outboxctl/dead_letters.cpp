// outboxctl dead-letters and outboxctl inbox dead-letters.
#include <algorithm>

#include "commands.hpp"
#include "confirm.hpp"
#include "nearest.hpp"

namespace outboxctl {

namespace {

constexpr const char* an_id = "019a5c1e-8d3c-7c3e-9d0a-2f6f3c1b7e55";

std::string view_of(Side side) {
    return std::string("FROM ") + side.schema + ".dead_letter";
}

std::string time_of(Side side) {
    return side.schema == std::string("outbox") ? "last_failed_at" : "died_at";
}

std::string columns_of(Side side) {
    const std::string time = time_of(side);
    return std::string(side.receiver) +
           ", event_id, event_type, ordering_key, attempts, date_trunc('second', " + time +
           ") AS " + time +
           (side.schema == std::string("outbox") ? ", last_error" : ", sqlstate, error");
}

// A misspelt name would be one without dead letters. A role that may not see the names gets no error.
void refuse_unknown(Session& session, Side side, const std::string& name) {
    const std::string kind = side.receiver;
    if (name.empty())
        return;
    std::vector<std::string> names;
    try {
        const Result rows =
            session.query("SELECT " + kind + " FROM " + side.schema + ".status ORDER BY 1");
        for (int row = 0; row < rows.rows(); row++)
            names.emplace_back(rows.text(row, 0));
    } catch (const Refused& error) {
        if (error.sqlstate == insufficient_privilege)
            return;
        throw;
    }
    if (std::find(names.begin(), names.end(), name) != names.end())
        return;
    const std::string meant = nearest(names, name);
    throw Refused("ERROR:  " + kind + " \"" + name + "\" does not exist" +
                  (meant.empty() ? "" : "\nHINT:  Did you mean \"" + meant + "\"?"));
}

struct Selection {
    std::string of;
    int limit = 100;
};

void add_list(Command group, Session& session, Side side) {
    const std::string name = group.full_name() + " list";
    add_command<Selection>(
        group, "list", "Lists events that were given up, the oldest first.",
        "  " + name + "\n  " + name + " catalog --limit 1000 --json\n",
        [side](Command command, Selection& selection) {
            command.argument(side.receiver, selection.of,
                             std::string("Only of this ") + side.receiver);
            command.option("--limit", selection.limit, "Highest number of events").positive();
        },
        [&session, side](const Selection& selection) {
            refuse_unknown(session, side, selection.of);
            session.list(columns_of(side),
                         view_of(side) + " WHERE $1 IN ('', " + side.receiver +
                             "::text) ORDER BY " + time_of(side) + ", event_id LIMIT $2",
                         {selection.of, std::to_string(selection.limit)});
        });
}

struct DeadLetterId {
    std::string id;
};

void add_show(Command group, Session& session, Side side) {
    add_command<DeadLetterId>(
        group, "show", "Shows all of an event that was given up, with its payload and its error.",
        "  " + group.full_name() + " show " + an_id + '\n',
        [](Command command, DeadLetterId& one) { command.argument("event_id", one.id).required(); },
        [&session, side](const DeadLetterId& one) {
            if (session.show(view_of(side) + " WHERE event_id = $1::uuid", {one.id}) == 0)
                throw Refused("ERROR:  event " + one.id + " is not a dead letter");
        });
}

struct Decision {
    std::string of, why;
    std::vector<std::string> ids;
    bool all = false, dry_run = false, yes = false;

    Parameter chosen() const { return all ? Parameter() : array_of(ids); }
};

void bind_decision(Command command, Decision& decision, Side side) {
    command.argument(side.receiver, decision.of).required();
    const Option ids = command.arguments("event_id", decision.ids, "Events");
    command.flag("--all", decision.all, std::string("All of the ") + side.receiver).excludes(ids);
    command.flag("--dry-run", decision.dry_run, "Count them, and do nothing");
}

void require_events(const Decision& decision) {
    if (!decision.all && decision.ids.empty())
        throw WrongUsage("event_id, or --all is required");
}

void decide(Session& session, const Decision& decision, const std::string& call,
            const std::string& done) {
    session.run(decision.dry_run, [&] {
        session.report("SELECT " + call + " AS " + done,
                       {decision.of, decision.chosen(), decision.why}, [&](const Result& result) {
                           const std::string number(result.text(0, 0));
                           return number + (number == "1" ? " dead letter " : " dead letters ") +
                                  (decision.dry_run ? "would be " : "") + done;
                       });
    });
}

void add_redrive(Command group, Session& session, Side side) {
    const std::string name = group.full_name() + " redrive catalog";
    add_command<Decision>(
        group, "redrive", "Tries events again that were given up, with all their attempts.",
        "  " + name + ' ' + an_id + "\n  " + name + " --all --why 'the cause is gone'\n",
        [side](Command command, Decision& decision) {
            bind_decision(command, decision, side);
            command.option("--why", decision.why,
                           std::string("Stored in ") + side.schema + ".operation");
        },
        [&session, side](const Decision& decision) {
            require_events(decision);
            decide(session, decision,
                   std::string(side.schema) + ".redrive($1, $2::uuid[], why => nullif($3, ''))",
                   "redriven");
        });
}

void add_discard(Command group, Session& session, Side side) {
    const std::string name = group.full_name() + " discard catalog";
    add_command<Decision>(
        group, "discard", "Gives up events for good; what waits behind them follows.",
        "  " + name + ' ' + an_id + " --why 'test data'\n",
        [side](Command command, Decision& decision) {
            bind_decision(command, decision, side);
            command
                .option("--why", decision.why,
                        std::string("Stored in ") + side.schema + ".operation")
                .required();
            command.flag("--yes", decision.yes, "Do not ask");
        },
        [&session, side](const Decision& decision) {
            require_events(decision);
            const std::string those = decision.all ? "all" : std::to_string(decision.ids.size());
            if (!decision.dry_run)
                confirm("Give up " + those + " dead letters of \"" + decision.of + "\"?",
                        decision.yes);
            const std::string all = "(SELECT array_agg(event_id) " + view_of(side) + " WHERE " +
                                    side.receiver + " = $1)";
            decide(session, decision,
                   std::string(side.schema) + ".discard($1, coalesce($2::uuid[], " + all +
                       ", '{}'), why => $3)",
                   "discarded");
        });
}

}  // namespace

void add_dead_letter_commands(Command group, Session& session, Side side) {
    Command commands =
        group.group("dead-letters", "Events that were given up and wait for a decision");
    add_list(commands, session, side);
    add_show(commands, session, side);
    add_redrive(commands, session, side);
    add_discard(commands, session, side);
}

}  // namespace outboxctl
