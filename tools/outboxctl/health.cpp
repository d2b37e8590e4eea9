// outboxctl health and metrics, of pg_outbox and of pg_inbox.
#include <cstdio>

#include "commands.hpp"

namespace outboxctl {

namespace {

struct Health {
    std::string max_age;
};

void add_health(Command group, Session& session, Side side) {
    add_command<Health>(
        group, "health",
        "Lists problems, and what to do about them; exit code 3 if one is failing.",
        "  " + group.full_name() + " health\n  " + group.full_name() +
            " health --max-age 10s --json\n",
        [](Command command, Health& health) {
            command.option("--max-age", health.max_age,
                           "Age above which a waiting event is a problem; default: 1 minute");
        },
        [&session, side](const Health& health) {
            std::string max_age;
            std::vector<Parameter> parameters;
            if (!health.max_age.empty()) {
                max_age = "max_age => $1::interval";
                parameters.emplace_back(health.max_age);
            }
            const std::string rows =
                std::string("FROM ") + side.schema + ".health(" + max_age + ")";
            if (session.list("*", rows, parameters, "severity = 'failing'") > 0)
                throw Failing();
        });
}

void add_metrics(Command group, Session& session, Side side) {
    add_command<NoArguments>(
        group, "metrics", "Prints figures for a monitoring system, as OpenMetrics text.",
        "  " + group.full_name() + " metrics\n", [](Command, NoArguments&) {},
        [&session, side](const NoArguments&) {
            const Result metrics =
                session.query(std::string("SELECT ") + side.schema + ".metrics()");
            const std::string_view text = metrics.text(0, 0);
            std::fwrite(text.data(), 1, text.size(), stdout);
        });
}

}  // namespace

void add_health_commands(Command group, Session& session, Side side) {
    add_health(group, session, side);
    add_metrics(group, session, side);
}

}  // namespace outboxctl
