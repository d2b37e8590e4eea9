#include "commands.hpp"
#include "inbox/install.hpp"

namespace outboxctl {

static std::string sentence(const inbox::Installed& installed) {
    if (installed.from.empty())
        return "pg_inbox " + installed.to + " is installed now";
    if (installed.from == installed.to)
        return "pg_inbox " + installed.to + " was installed already";
    return "pg_inbox is upgraded from " + installed.from + " to " + installed.to;
}

void add_install_command(Command group, Session& session) {
    add_command<NoArguments>(
        group, "install",
        "Installs or upgrades pg_inbox where CREATE EXTENSION is not available. Needs CREATE on "
        "the database.",
        "  outboxctl inbox install -d 'host=db.example.com dbname=catalog user=catalog_owner'\n\n"
        "The role becomes the owner, and only the owner can upgrade.\n",
        [](Command, NoArguments&) {},
        [&session](const NoArguments&) {
            const inbox::Installed installed = inbox::install(session.unlimited_connection());
            session.report("SELECT nullif($1, '') AS \"from\", $2 AS \"to\"",
                           {installed.from, installed.to},
                           [&](const Result&) { return sentence(installed); });
        });
}

}  // namespace outboxctl
