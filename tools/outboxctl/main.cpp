// outboxctl: a command-line tool for pg_outbox and pg_inbox. See docs/outboxctl.md.
#include <cstdio>
#include <exception>
#include <string_view>

#include "commands.hpp"
#include "inbox/error.hpp"

static constexpr int refused = 1;
static constexpr int wrong_usage = 2;

static int complain(std::string_view text) {
    while (text.ends_with('\n'))
        text.remove_suffix(1);
    std::fprintf(stderr, "outboxctl: %.*s\n", static_cast<int>(text.size()), text.data());
    return refused;
}

int main(int argc, char** argv) {
    outboxctl::Session session;
    CLI::App app("Manages pg_outbox and pg_inbox.", "outboxctl");
#if CLI11_VERSION_MAJOR > 2 || (CLI11_VERSION_MAJOR == 2 && CLI11_VERSION_MINOR >= 5)
    app.get_formatter()->enable_footer_formatting(false);  // keeps their line breaks
#endif
    app.set_version_flag("--version", "outboxctl " OUTBOX_VERSION);
    app.add_option("-d,--dbname", session.conninfo,
                   "Database name, connection string or URI; missing parts come from PGHOST, "
                   "PGDATABASE and so on, as in psql");
    app.add_flag("--json", session.json, "Print JSON");
    app.fallthrough();  // these two options may stand anywhere
    app.require_subcommand(1);
    outboxctl::add_backfill_commands(app, session);
    outboxctl::add_edition_command(app, session);
    outboxctl::add_inbox_commands(app, session);
    outboxctl::add_migrate_command(app, session);
    try {
        app.parse(argc, argv);
        return 0;
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : wrong_usage;
    } catch (const std::exception& error) {
        return complain(error.what());
    }
}
