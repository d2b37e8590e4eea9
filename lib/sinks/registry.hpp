// What all sinks declare, and the destinations that come of it: options are validated when the
// statement runs, and parsed by the same rules when a relay starts.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/destination.hpp"

namespace outbox {

// The list: sink_list.cpp.
std::span<const SinkDeclaration* const> all_sinks() noexcept;

// The sink that the scheme of a URL belongs to; nullptr if there is none. The rest is not looked at.
const SinkDeclaration* sink_of_url(std::string_view url) noexcept;

Result<Destination> parse_destination(std::string_view name, std::vector<Option> server_options,
                                      std::vector<Option> mapping_options,
                                      const DestinationDefaults& defaults);

// For the validator, which sees the options of one catalog at a time. std::nullopt if they are valid.
// `may_read_files`: whether the role may name files of the server.
std::optional<Error> validate_server_options(const std::vector<Option>& options,
                                             bool may_read_files = true);
std::optional<Error> validate_mapping_options(const std::vector<Option>& options);
// Other objects (the wrapper itself, foreign tables) take no options.
std::optional<Error> validate_no_options(const std::vector<Option>& options);

// Whether an option of a user mapping names keys of the server. Such a file proves the identity of the
// server, so that only superusers may name it.
bool names_server_keys(std::string_view option) noexcept;
// The option or URL parameter that names a file of the server; empty if there is none.
std::string file_option(const Destination& destination);
// The error if a role that may not read files of the server has named one. Such a role must not learn
// which files there are, so it says nothing about the file.
Error may_not_name_file(std::string_view option);

}  // namespace outbox
