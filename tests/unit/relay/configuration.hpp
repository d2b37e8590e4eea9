// Loads configurations in tests: a folder for files, and variables that are not those of the
// process.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "relay/configure/load.hpp"

namespace outbox::relay {

class Configuration {
  public:
    Configuration() {
        static int number = 0;
        directory_ /= "outbox_relay." + std::to_string(getpid()) + '.' + std::to_string(++number);
        std::filesystem::create_directory(directory_);
    }
    ~Configuration() { std::filesystem::remove_all(directory_); }

    std::string path(const std::string& name = "relay.toml") const {
        return (directory_ / name).string();
    }
    std::string write(const std::string& name, const std::string& text) const {
        std::ofstream(path(name), std::ios::binary) << text;
        return path(name);
    }

    RelayConfig load() {
        errors.clear();
        return load_config(
            arguments,
            [this](const char* name) {
                const auto found = variables.find(name);
                return found != variables.end() ? found->second.c_str() : nullptr;
            },
            errors);
    }
    RelayConfig load(const std::string& toml) {
        arguments.config = write("relay.toml", toml);
        return load();
    }
    void set_flag(const std::string& name, const std::string& value) {
        arguments.process[name] = {value, "--" + name};
    }
    // A line for each error, without the path of relay.toml.
    std::string complaints() const {
        std::string text;
        for (const Error& error : errors)
            text += error.message + '|' + error.detail + '|' + error.hint + '\n';
        const std::string prefix = path() + ':';
        for (std::size_t at = 0; (at = text.find(prefix, at)) != std::string::npos;)
            text.erase(at, prefix.size());
        return text;
    }

    Arguments arguments;
    std::map<std::string, std::string, std::less<>> variables;
    Errors errors;

  private:
    std::filesystem::path directory_ = std::filesystem::temp_directory_path();
};

}  // namespace outbox::relay
