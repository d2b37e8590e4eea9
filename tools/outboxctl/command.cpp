#include "command.hpp"

#include <CLI/CLI.hpp>

namespace outboxctl {

Option Option::required() {
    option_->required();
    return *this;
}

Option Option::one_of(std::initializer_list<const char*> values) {
    option_->check(CLI::IsMember(std::vector<std::string>(values.begin(), values.end())));
    return *this;
}

Option Option::between(int least, int most) {
    option_->check(CLI::Range(least, most));
    return *this;
}

Option Option::positive() {
    option_->check(CLI::PositiveNumber);
    return *this;
}

Option Option::excludes(Option other) {
    option_->excludes(other.option_);
    return *this;
}

Command Command::group(const std::string& name, const std::string& help) {
    CLI::App* group = app_->add_subcommand(name, help);
    group->require_subcommand(1);
    return Command(group, chosen_);
}

Option Command::argument(const std::string& name, std::string& value, const std::string& help) {
    return Option(app_->add_option(name, value, help));
}

// CLI11 takes an empty value for none if it sets the optional itself.
static CLI::Option* add_optional(CLI::App* app, const std::string& name,
                                 std::optional<std::string>& value, const std::string& help) {
    return app->add_option_function<std::string>(
        name, [&value](const std::string& text) { value = text; }, help);
}

Option Command::argument(const std::string& name, std::optional<std::string>& value,
                         const std::string& help) {
    return Option(add_optional(app_, name, value, help));
}

Option Command::option(const std::string& name, std::optional<std::string>& value,
                       const std::string& help) {
    return Option(add_optional(app_, name, value, help));
}

Option Command::arguments(const std::string& name, std::vector<std::string>& values,
                          const std::string& help) {
    return Option(app_->add_option(name, values, help));
}

Option Command::option(const std::string& name, std::string& value, const std::string& help) {
    return Option(app_->add_option(name, value, help));
}

Option Command::option(const std::string& name, std::vector<std::string>& values,
                       const std::string& help) {
    return Option(app_->add_option(name, values, help));
}

Option Command::option(const std::string& name, int& value, const std::string& help) {
    return Option(app_->add_option(name, value, help)->capture_default_str());
}

Option Command::flag(const std::string& name, bool& value, const std::string& help) {
    return Option(app_->add_flag(name, value, help));
}

std::string Command::full_name() const {
    std::string name = app_->get_name();
    for (const CLI::App* above = app_->get_parent(); above != nullptr; above = above->get_parent())
        name = above->get_name() + ' ' + name;
    return name;
}

Command Command::add(const std::string& name, const std::string& help, const std::string& examples,
                     std::function<void()> work) {
    CLI::App* command = app_->add_subcommand(name, help);
    command->footer("Examples:\n" + examples + "\nOptions of all commands: outboxctl --help\n");
    command->callback([chosen = chosen_, work = std::move(work)] { *chosen = work; });
    return Command(command, chosen_);
}

}  // namespace outboxctl
