// The commands of the tool: their names, arguments and help, and what they do.
//
// Only command.cpp includes the library that parses the command line. It takes seconds to compile,
// which each file of commands would pay again.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace outboxctl {

// The command line is wrong in a way that parsing it did not show.
struct WrongUsage : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Option {
  public:
    explicit Option(CLI::Option* option) : option_(option) {}
    Option required();
    Option one_of(std::initializer_list<const char*> values);
    Option between(int least, int most);
    Option positive();
    Option excludes(Option other);

  private:
    CLI::Option* option_;
};

// A command, or a group of commands. The values live as long as the program.
class Command {
  public:
    // `chosen` becomes what the command on the line does.
    Command(CLI::App* app, std::function<void()>* chosen) : app_(app), chosen_(chosen) {}

    // A group of further commands.
    Command group(const std::string& name, const std::string& help);

    // By their places on the line, and by names that begin with "--".
    Option argument(const std::string& name, std::string& value, const std::string& help = "");
    Option arguments(const std::string& name, std::vector<std::string>& values,
                     const std::string& help = "");
    Option option(const std::string& name, std::string& value, const std::string& help = "");
    // Those that need not be given. An empty value is a value: without it, another event or more
    // events would be meant.
    Option argument(const std::string& name, std::optional<std::string>& value,
                    const std::string& help = "");
    Option option(const std::string& name, std::optional<std::string>& value,
                  const std::string& help = "");
    Option option(const std::string& name, std::vector<std::string>& values,
                  const std::string& help = "");
    Option option(const std::string& name, int& value, const std::string& help = "");
    Option flag(const std::string& name, bool& value, const std::string& help);

    // "outboxctl inbox dead-letters" and so on.
    std::string full_name() const;

    Command add(const std::string& name, const std::string& help, const std::string& examples,
                std::function<void()> work);

  private:
    CLI::App* app_;
    std::function<void()>* chosen_;
};

// For a command without arguments.
struct NoArguments {};

// Adds a command. bind(command, arguments) declares its options as members of an `Arguments`, which
// work(arguments) then uses. `examples` may be followed by further text.
template <class Arguments, class Bind, class Work>
void add_command(Command group, const std::string& name, const std::string& help,
                 const std::string& examples, Bind bind, Work work) {
    auto arguments = std::make_shared<Arguments>();
    Command command = group.add(name, help, examples, [arguments, work] { work(*arguments); });
    bind(command, *arguments);
}

}  // namespace outboxctl
