// All sinks and their declarations, and destinations made from them. Options are validated when the
// statement runs, and parsed by the same rules when a relay starts.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/destination.hpp"

namespace outbox {

// The list is in sink_list.cpp.
std::span<const SinkDeclaration* const> all_sinks() noexcept;

// Returns the sink for the scheme of a URL, or nullptr. Ignores the rest of the URL.
const SinkDeclaration* sink_of_url(std::string_view url) noexcept;

Result<Destination> parse_destination(std::string_view name, std::vector<Option> server_options,
                                      std::vector<Option> mapping_options,
                                      const DestinationDefaults& defaults);

// For the validator, which sees the options of one catalog at a time. Returns std::nullopt if they
// are valid. `may_read_files` says whether the role may name files of the server.
std::optional<Error> validate_server_options(const std::vector<Option>& options,
                                             bool may_read_files = true);
std::optional<Error> validate_mapping_options(const std::vector<Option>& options);
// For objects that take no options: the wrapper itself, foreign tables.
std::optional<Error> validate_no_options(const std::vector<Option>& options);

// Returns true for a duration without a unit, which is more often a mistake than meant as
// milliseconds.
bool lacks_unit(const Option& server_option);

// Returns true if an option of a user mapping names a file with keys of the server. Such keys prove
// the server's identity, so only superusers may name the file.
bool names_server_keys(std::string_view option) noexcept;
// Returns the option or URL parameter that names a file of the server, or an empty string.
std::string file_option(const Destination& destination);

// What else than the URL says who gets the credentials.
struct OtherHosts {
    std::vector<const Option*> options{};  // of the destination, with the URLs of other hosts
    bool in_parameters = false;            // a parameter of the URL replaces its host
};
OtherHosts other_hosts(const Destination& destination);
// The error for a role that named a file but may not read files of the server. It says nothing
// about the file, so that such a role cannot find out which files exist.
Error may_not_name_file(std::string_view option);

}  // namespace outbox
