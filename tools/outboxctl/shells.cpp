#include "shells.hpp"

namespace outboxctl {

static const CLI::App* command_of(const CLI::App* group, const std::string& word) {
    for (const CLI::App* command : group->get_subcommands({}))
        if (command->get_name() == word)
            return command;
    return nullptr;
}

static std::string options_of(const CLI::App& app) {
    std::string lines;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames())
            lines += option == app.get_help_ptr() ? "" : "--" + name + '\n';
    return lines;
}

std::string completions(const CLI::App& app, const std::vector<std::string>& words) {
    const CLI::App* group = &app;
    for (const std::string& word : words)
        if (const CLI::App* next = command_of(group, word))
            group = next;
    std::string lines;
    for (const CLI::App* command : group->get_subcommands({}))
        lines += command->get_name() + '\n';
    return lines + options_of(*group) + (group == &app ? "" : options_of(app));
}

// Escapes what troff would take for its own.
static std::string troff(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
            out += "\\&";
        out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
    }
    return out;
}

static void describe(const CLI::App& app, const std::string& above, std::string& page) {
    const std::string name = above + ' ' + app.get_name();
    if (app.get_subcommands({}).empty()) {
        std::string line = name, options;
        for (const CLI::Option* option : app.get_options()) {
            if (option->get_positional())
                line += ' ' + (option->get_required() ? option->get_name(true)
                                                      : '[' + option->get_name(true) + ']');
            if (!option->get_description().empty() && option != app.get_help_ptr())
                options += ".TP\n.B " + troff(option->get_name(option->get_positional(), true)) +
                           '\n' + troff(option->get_description()) + '\n';
        }
        page += ".SS " + troff(line) + '\n' + troff(app.get_description()) + '\n' + options +
                ".PP\n.nf\n" + troff(app.get_footer()) + "\n.fi\n";
    }
    for (const CLI::App* command : app.get_subcommands({}))
        describe(*command, name, page);
}

std::string man_page(const CLI::App& app, const std::string& version) {
    std::string page = ".TH OUTBOXCTL 1 \"\" \"pg_outbox " + version +
                       "\"\n.SH NAME\noutboxctl \\- manages pg_outbox and pg_inbox\n"
                       ".SH SYNOPSIS\n.B outboxctl\n[\\-d DATABASE] [\\-\\-json] COMMAND ...\n"
                       ".SH COMMANDS\n";
    for (const CLI::App* command : app.get_subcommands({}))
        describe(*command, "outboxctl", page);
    return page +
           ".SH EXIT STATUS\n.TP\n0\ndone\n.TP\n1\nthe database refused it, or could not be "
           "reached\n"
           ".TP\n2\nthe command line is invalid\n.TP\n3\nhealth, check or doctor found a problem\n";
}

}  // namespace outboxctl
