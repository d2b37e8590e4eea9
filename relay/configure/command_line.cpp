#include "relay/configure/command_line.hpp"

#include <CLI/CLI.hpp>

#include "relay/configure/settings.hpp"

namespace outbox::relay {

namespace {

constexpr const char* examples =
    "Examples:\n"
    "  outbox-relay --config /etc/outbox-relay/relay.toml --check\n"
    "  outbox-relay --config /etc/outbox-relay/relay.toml --listen :8080 --log-format json\n"
    "  OUTBOX_DATABASE_URL=postgresql://relay@db/orders outbox-relay --once\n\n"
    "Each option can also be set in relay.toml, or by an environment variable: --log-format by\n"
    "OUTBOX_LOG_FORMAT, and so on. A flag replaces a variable, and a variable replaces a key.\n"
    "Other users can read the command line, so passwords must not be on it.\n";

void add_settings(CLI::App& app, std::span<const Setting> settings, bool of_database,
                  Values& values) {
    for (const Setting& setting : settings) {
        if (!setting.has_flag)
            continue;
        const std::string flag = flag_of(setting.spec.name, of_database);
        app.add_option_function<std::string>(
               flag,
               [&values, name = std::string(setting.spec.name), flag](const std::string& value) {
                   values[name] = {value, flag, false};
               },
               plain_text(setting.spec.description))
            ->group(of_database ? "A database without relay.toml" : "Options");
    }
}

}  // namespace

std::variant<Arguments, int> parse_command_line(int argc, const char* const* argv) {
    Arguments arguments;
    CLI::App app("Delivers events of pg_outbox from outside of the server.", "outbox-relay");
#if CLI11_VERSION_MAJOR > 2 || (CLI11_VERSION_MAJOR == 2 && CLI11_VERSION_MINOR >= 5)
    app.get_formatter()->enable_footer_formatting(false);  // keeps their line breaks
#endif
    app.set_version_flag("--version", "outbox-relay " OUTBOX_VERSION);
    app.add_option("--config", arguments.config, "Path of relay.toml");
    app.add_flag("--check", arguments.check,
                 "Checks the configuration, the databases and their destinations, and ends");
    app.add_flag("--once", arguments.once, "Delivers all events that there are, and ends");
    add_settings(app, process_settings(), false, arguments.process);
    add_settings(app, database_settings(), true, arguments.database);
    app.footer(examples);
    try {
        app.parse(argc, argv);
        return arguments;
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : wrong_usage;
    }
}

}  // namespace outbox::relay
