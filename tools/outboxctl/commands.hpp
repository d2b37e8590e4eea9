// The commands, group by group. These functions only declare commands and their options. Callbacks
// do the work after the command line has been parsed.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "session.hpp"

namespace outboxctl {

void add_backfill_commands(CLI::App& app, Session& session);
void add_edition_command(CLI::App& app, Session& session);
void add_inbox_commands(CLI::App& app, Session& session);
void add_migrate_command(CLI::App& app, Session& session);

// Parts of add_inbox_commands().
void add_install_command(CLI::App& inbox, Session& session);
void add_offset_commands(CLI::App& inbox, Session& session);
void add_dead_letter_commands(CLI::App& inbox, Session& session);
void add_status_commands(CLI::App& inbox, Session& session);
void add_right_commands(CLI::App& inbox, Session& session);

// Adds a command. bind(command, arguments) declares its options as members of an `Arguments`, which
// work(arguments) then uses. `examples` may be followed by further text.
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
