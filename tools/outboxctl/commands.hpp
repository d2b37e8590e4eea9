// The commands, group by group. What is called here only says what there is; the work is done in
// callbacks, when the command line has been understood.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "session.hpp"

namespace outboxctl {

void add_backfill_commands(CLI::App& app, Session& session);
void add_inbox_commands(CLI::App& app, Session& session);

// Of which the latter consists.
void add_install_command(CLI::App& inbox, Session& session);
void add_offset_commands(CLI::App& inbox, Session& session);
void add_dead_letter_commands(CLI::App& inbox, Session& session);
void add_status_commands(CLI::App& inbox, Session& session);
void add_right_commands(CLI::App& inbox, Session& session);

// A command whose arguments are an `Arguments`, which bind(command, arguments) declares and
// work(arguments) uses. `examples`: what more there is to say may follow them.
template <class Arguments, class Bind, class Work>
CLI::App* add_command(CLI::App& group, const std::string& name, const std::string& help,
                      const std::string& examples, Bind bind, Work work) {
    CLI::App* command = group.add_subcommand(name, help);
    auto arguments = std::make_shared<Arguments>();
    bind(*command, *arguments);
    command->footer("Examples:\n" + examples + "\nOptions of all commands: outboxctl --help\n");
    command->callback([arguments, work] { work(*arguments); });
    return command;
}

}  // namespace outboxctl
