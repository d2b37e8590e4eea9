// Values of settings as they are found in a source, before they are checked and merged.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/option.hpp"
#include "core/result.hpp"
#include "relay/configure/config.hpp"

namespace outbox::relay {

struct Given {
    std::string value;
    std::string origin;        // for errors: "--lease", "OUTBOX_LEASE", "relay.toml:12"
    bool is_unusable = false;  // an error says why
};

// By the name of the setting.
using Values = std::map<std::string, Given, std::less<>>;

// Returns the value of a variable, or nullptr.
using Environment = std::function<const char*(const char* name)>;

// "a, b" -> a, b
std::vector<std::string> split_list(std::string_view list);

// Errors of a configuration. All are reported, not only the first.
using Errors = std::vector<Error>;

// Contents of relay.toml.
struct FileContents {
    Values process;
    std::map<std::string, Values, std::less<>> databases;
    std::map<std::string, std::vector<Option>, std::less<>> credentials;
    std::map<std::string, CredentialScope, std::less<>> credential_scopes;
};

// Reads relay.toml: keys, and values that may be in the environment or in other files. Values of
// settings are not checked, options of credentials are. Appends what is wrong to `errors`.
FileContents read_toml(const std::string& path, const Environment& environment, Errors& errors);

// The command line.
struct Arguments {
    Values process;
    Values database;
    std::string config;  // path of relay.toml
    bool once = false;
    bool check = false;
};

}  // namespace outbox::relay
