#include "commands.hpp"
#include "listing.hpp"

namespace outboxctl {

namespace {

struct Consumer {
    std::string name;
};

void add_offsets(Command group, Session& session) {
    add_command<Consumer>(
        group, "offsets", "Lists offsets of consumers in their subscriptions.",
        "  outboxctl inbox offsets\n"
        "  outboxctl inbox offsets catalog --json\n",
        [](Command command, Consumer& consumer) {
            command.argument("consumer", consumer.name, "Only for this consumer");
        },
        [&session](const Consumer& consumer) {
            session.list("*",
                         "FROM inbox.offsets WHERE $1 IN ('', consumer) "
                         "ORDER BY consumer, subscription",
                         {consumer.name});
        });
}

struct Reset {
    std::string consumer, subscription, to, why;
};

// `beginning` is a time before anything was published.
constexpr const char* reset_query =
    "SELECT inbox.reset_offset($1, $2, CASE $3 WHEN 'beginning' THEN to_timestamp(0) "
    "ELSE $3::timestamptz END, $4) AS reset_id";

void add_reset_offset(Command group, Session& session) {
    add_command<Reset>(
        group, "reset-offset", "Makes a consumer go back or forward to a publish time.",
        "  outboxctl inbox reset-offset catalog pubsub://shop/catalog --to '2026-01-31 10:00+00' "
        "--why 'bad deploy'\n"
        "  outboxctl inbox reset-offset catalog pubsub://shop/catalog --to beginning "
        "--why 'projection is rebuilt'\n\n"
        "It goes there when it polls next; `offsets` shows whether it has. An event that it has\n"
        "applied before has no effect unless it is forgotten: see inbox.forget().\n",
        [](Command command, Reset& reset) {
            command.argument("consumer", reset.consumer).required();
            command.argument("subscription", reset.subscription, "As `offsets` shows it")
                .required();
            command.option("--to", reset.to, "A time as PostgreSQL reads it, or `beginning`")
                .required();
            command.option("--why", reset.why, "Stored in inbox.operation").required();
        },
        [&session](const Reset& reset) {
            session.report(reset_query, {reset.consumer, reset.subscription, reset.to, reset.why},
                           [&](const Result& result) {
                               return "reset " + std::string(result.text(0, 0)) + ": consumer \"" +
                                      reset.consumer + "\" will go to " + reset.to;
                           });
        });
}

struct Gap {
    std::string consumer, subscription, why;
};

void add_accept_gap(Command group, Session& session) {
    add_command<Gap>(
        group, "accept-gap", "Accepts that events of a subscription can no longer be received.",
        "  outboxctl inbox accept-gap catalog kafka:video.events/0 --why 'sent again'\n\n"
        "`health` no longer shows the gap then, until the next one is reported. Send what is "
        "missing\n"
        "again before: for example with `outboxctl replay`.\n",
        [](Command command, Gap& gap) {
            command.argument("consumer", gap.consumer).required();
            command.argument("subscription", gap.subscription, "As `gaps` shows it").required();
            command.option("--why", gap.why, "Stored in inbox.operation").required();
        },
        [&session](const Gap& gap) {
            const Result accepted = session.query("SELECT inbox.accept_gap($1, $2, $3)",
                                                  {gap.consumer, gap.subscription, gap.why});
            if (accepted.text(0, 0) != "t")
                throw Refused("ERROR:  subscription \"" + gap.subscription + "\" of consumer \"" +
                              gap.consumer + "\" has no gap to accept");
            session.report(
                "SELECT $1::text AS consumer, $2::text AS subscription, 'accepted' AS state",
                {gap.consumer, gap.subscription}, [&](const Result&) {
                    return "gap of subscription \"" + gap.subscription + "\" of consumer \"" +
                           gap.consumer + "\" accepted";
                });
        });
}

}  // namespace

void add_offset_commands(Command inbox, Session& session) {
    add_offsets(inbox, session);
    add_reset_offset(inbox, session);
    add_listing(inbox, session,
                {.command = "gaps",
                 .help = "Lists subscriptions of which events can no longer be received.",
                 .columns = "*",
                 .from = "inbox.gaps",
                 .key = "consumer",
                 .order = "consumer, subscription"});
    add_accept_gap(inbox, session);
}

}  // namespace outboxctl
