#include "databases.hpp"

#include <cstdlib>
#include <filesystem>

#include <toml++/toml.h>

#include "command.hpp"

namespace outboxctl {

// $OUTBOXCTL_CONFIG, or by the XDG Base Directory Specification.
static std::string file_of_contexts() {
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value != nullptr ? value : "");
    };
    if (std::string file = variable("OUTBOXCTL_CONFIG"); !file.empty())
        return file;
    const std::string folder = variable("XDG_CONFIG_HOME");
    return (folder.empty() ? variable("HOME") + "/.config" : folder) + "/outboxctl.toml";
}

static toml::table read(const std::string& file) {
    try {
        return toml::parse_file(file);
    } catch (const toml::parse_error& error) {
        throw WrongUsage("could not read \"" + file + "\", line " +
                         std::to_string(error.source().begin.line) + ": " +
                         std::string(error.description()));
    }
}

static void add_context(std::vector<std::string>& all, const toml::table& table,
                        const std::string& name, const std::string& file) {
    const toml::node_view context = table["contexts"][name];
    std::size_t strings = 0;
    const auto add = [&](const auto& node) {
        if (const auto* text = node.as_string()) {
            all.push_back(text->get());
            strings++;
        }
    };
    if (context)
        add(*context.node());
    if (const toml::array* list = context.as_array())
        for (const toml::node& node : *list)
            add(node);
    if (strings == 0)
        throw WrongUsage("\"" + file + "\" has no context \"" + name +
                         "\": a connection string, or a list of them, below [contexts]");
}

std::vector<std::string> databases(const std::vector<std::string>& given,
                                   const std::vector<std::string>& contexts) {
    std::vector<std::string> all = given;
    if (!contexts.empty()) {
        const std::string file = file_of_contexts();
        const toml::table table = read(file);
        for (const std::string& name : contexts)
            add_context(all, table, name, file);
    }
    if (all.empty())
        all.emplace_back();
    return all;
}

}  // namespace outboxctl
