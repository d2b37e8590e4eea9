#include "listing.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace outboxctl {

namespace {

struct Choice {
    std::string of_key;
    bool watch = false;
};

constexpr auto between_lists = std::chrono::seconds(2);

void print_rows(Session& session, const Listing& listing, const Choice& choice) {
    const std::string order = listing.order.empty() ? "" : " ORDER BY " + listing.order;
    if (listing.key.empty())
        session.list(listing.columns, "FROM " + listing.from + order);
    else
        session.list(
            listing.columns,
            "FROM " + listing.from + " WHERE $1 IN ('', " + listing.key + "::text)" + order,
            {choice.of_key});
    std::fflush(stdout);
}

// On a terminal each look takes the place of the one before. It ends with the process.
[[noreturn]] void watch(Session& session, const Listing& listing, const Choice& choice) {
    const bool in_place = isatty(STDOUT_FILENO) != 0 && !session.json;
    for (;;) {
        if (in_place)
            std::printf("\033[H\033[2J");
        print_rows(session, listing, choice);
        std::this_thread::sleep_for(between_lists);
    }
}

}  // namespace

void add_listing(Command group, Session& session, const Listing& listing) {
    const std::string name = group.full_name() + ' ' + listing.command;
    add_command<Choice>(
        group, listing.command, listing.help,
        "  " + name + "\n  " + name + " --watch\n  " + name + " --json\n",
        [&listing](Command command, Choice& choice) {
            if (!listing.key.empty())
                command.argument(listing.key, choice.of_key, "Only of this " + listing.key);
            command.flag("--watch", choice.watch, "Show it again every two seconds");
        },
        [&session, listing](const Choice& choice) {
            if (choice.watch && session.one_of_several)
                throw WrongUsage("--watch works on one database");
            if (choice.watch)
                watch(session, listing, choice);
            print_rows(session, listing, choice);
        });
}

}  // namespace outboxctl
