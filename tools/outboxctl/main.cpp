// outboxctl: a command-line tool for pg_outbox and pg_inbox. See docs/outboxctl.md.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <span>
#include <string_view>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "databases.hpp"
#include "inbox/error.hpp"
#include "nearest.hpp"
#include "shells.hpp"

static constexpr int refused = 1;
static constexpr int wrong_usage = 2;
static constexpr int failing = 3;

static int complain(std::string_view text) {
    while (text.ends_with('\n'))
        text.remove_suffix(1);
    std::fprintf(stderr, "outboxctl: %.*s\n", static_cast<int>(text.size()), text.data());
    return refused;
}

static int explain(const CLI::App& app, const CLI::ParseError& error) {
    const std::string complaint =
        error.get_exit_code() == 0 ? "" : outboxctl::complaint_about_commands(app);
    if (complaint.empty())
        return app.exit(error) == 0 ? 0 : wrong_usage;
    complain(complaint);
    return wrong_usage;
}

// `outboxctl complete WORD...` and `outboxctl man` are for shells and for the build, so no help
// mentions them.
static bool printed_for_shells(const CLI::App& app, std::vector<std::string> words) {
    const std::string word = words.front();
    words.erase(words.begin());
    const std::string text = word == "complete" ? outboxctl::completions(app, words)
                             : word == "man"    ? outboxctl::man_page(app, OUTBOX_VERSION)
                                                : "";
    std::fputs(text.c_str(), stdout);
    return !text.empty();
}

// Does it in each database, and goes on where one of them fails. Returns the exit code.
static int work_on_all(outboxctl::Session& session, const std::function<void()>& work) {
    int code = 0;
    while (session.next()) {
        try {
            work();
        } catch (const outboxctl::Failing&) {
            code = code == 0 ? failing : code;
        } catch (const outboxctl::WrongUsage&) {
            throw;
        } catch (const std::exception& error) {
            code = complain(error.what());
        }
    }
    return code;
}

static bool takes_value(const CLI::App& app, const std::string& name) {
    for (const CLI::Option* option : app.get_options())
        if (option->check_name(name))
            return option->get_items_expected_max() > 0;
    const auto& groups = app.get_subcommands({});
    return std::any_of(groups.begin(), groups.end(),
                       [&](const CLI::App* group) { return takes_value(*group, name); });
}

// Returns the arguments as CLI11 takes them. It would take the next argument for the value of
// "--name=", and "++" for none at all.
static std::vector<std::string> read_arguments(const CLI::App& app,
                                               std::span<const char* const> given) {
    std::vector<std::string> all;
    bool is_value = false, only_values = false;
    for (const std::string argument : given) {
        const std::size_t end = argument.find('=');
        const bool is_option = !is_value && !only_values && argument.starts_with('-');
        if (!is_value && !only_values && argument == "++")
            throw outboxctl::WrongUsage("write -- before the arguments, one of which is \"++\"");
        all.push_back(argument);
        if (is_option && argument.starts_with("--") && end == argument.size() - 1) {
            all.back().pop_back();
            all.emplace_back();
        }
        only_values = only_values || (is_option && argument == "--");
        is_value = is_option && end == std::string::npos && takes_value(app, argument);
    }
    return all;
}

int main(int argc, char** argv) {
    outboxctl::Session session;
    CLI::App app("Manages pg_outbox and pg_inbox.", "outboxctl");
#if CLI11_VERSION_MAJOR > 2 || (CLI11_VERSION_MAJOR == 2 && CLI11_VERSION_MINOR >= 5)
    app.get_formatter()->enable_footer_formatting(false);  // keeps their line breaks
#endif
    app.set_version_flag("--version", "outboxctl " OUTBOX_VERSION);
    std::vector<std::string> given, contexts;
    app.add_option("-d,--dbname", given,
                   "Database name, connection string or URI; missing parts come from PGHOST, "
                   "PGDATABASE and so on, as in psql. May be given several times")
        ->allow_extra_args(false);
    app.add_option("-c,--context", contexts,
                   "Name in ~/.config/outboxctl.toml of one or more databases")
        ->allow_extra_args(false);
    app.add_flag("--json", session.json, "Print JSON");
    app.fallthrough();  // these options may stand anywhere
    app.require_subcommand(1);
    std::function<void()> work;
    const outboxctl::Command commands(&app, &work);
    outboxctl::add_destination_commands(commands, session);
    outboxctl::add_event_commands(commands, session);
    outboxctl::add_dead_letter_commands(commands, session, outboxctl::producer);
    outboxctl::add_health_commands(commands, session, outboxctl::producer);
    outboxctl::add_top_command(commands, session);
    outboxctl::add_serve_command(commands, session);
    outboxctl::add_doctor_command(commands, session);
    outboxctl::add_backfill_commands(commands, session);
    outboxctl::add_inbox_commands(commands, session);
    outboxctl::add_edition_command(commands, session);
    outboxctl::add_migrate_command(commands, session);
    if (argc > 1 && printed_for_shells(app, std::vector<std::string>(argv + 1, argv + argc)))
        return 0;
    try {
        std::vector<std::string> arguments = read_arguments(app, {argv + 1, argv + argc});
        std::reverse(arguments.begin(), arguments.end());
        app.parse(std::move(arguments));
        session.set_databases(outboxctl::databases(given, contexts));
        return work_on_all(session, work);
    } catch (const CLI::ParseError& error) {
        return explain(app, error);
    } catch (const outboxctl::WrongUsage& error) {
        complain(error.what());
        return wrong_usage;
    }
}
