// The settings of outbox-relay. Each is declared once: the checks of values, the command line, the
// names of environment variables and the table in docs/outbox-relay.md come from here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/option.hpp"
#include "core/result.hpp"

namespace outbox::relay {

struct Setting {
    OptionSpec spec;
    // If true, it may be on the command line, which other users of the machine can read.
    bool has_flag = true;
};

// Keys at the top of relay.toml.
std::span<const Setting> process_settings() noexcept;
// Keys of [databases.NAME]. As flags and variables they describe a database without a section.
std::span<const Setting> database_settings() noexcept;

// "shutdown_timeout" -> "--shutdown-timeout"
std::string flag_of(std::string_view setting, bool of_database);
// "shutdown_timeout" -> "OUTBOX_SHUTDOWN_TIMEOUT"
std::string variable_of(std::string_view setting, bool of_database);

// A description for a terminal: without marks of code, and with the text of links only.
std::string plain_text(std::string_view markdown);

// "Did you mean ...? Valid ... are: ..."
std::string hint_for_unknown(std::string_view name, std::string_view what,
                             const std::vector<std::string_view>& valid);

// An address of the HTTP server. An empty host stands for all addresses of the machine.
struct ListenAddress {
    std::string host;
    int port = 0;  // 0 for any free one
};
// Reads "127.0.0.1:8080", "[::1]:8080" or ":8080".
Result<ListenAddress> parse_listen_address(std::string_view text);

// Reads "48MB": a valid value of the setting `memory`, in bytes.
std::optional<std::size_t> parse_memory(std::string_view text);

// The rows of the table of settings in docs/outbox-relay.md.
std::string settings_table();

}  // namespace outbox::relay
