// Converts values to and from their text forms in PostgreSQL.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

// True for 8, 4, 4, 4 and 12 hexadecimal digits with hyphens between them.
bool is_uuid(std::string_view text);
// Makes an id for an event without a valid one. Equal texts give equal ids. Version 8 (RFC 9562).
std::string made_uuid(std::string_view source, std::string_view message_id);

// Returns '{"a","b"}'.
std::string array_literal(std::span<const std::string> elements);
// Returns '2024-02-29T12:00:00.123456Z', or std::nullopt for a time that is not set.
std::optional<std::string> time_literal(Time time);

// Replaces NUL and everything that is not valid UTF-8: a database refuses both.
std::string clean_utf8(std::string_view text, std::string_view replacement = "?");

// Returns a JSON object, or std::nullopt if there are no headers.
std::optional<std::string> headers_to_json(const std::map<std::string, std::string>& headers);
// Reads the members of a JSON object in the text form of jsonb. Strings lose their quotes, null
// members are omitted, and all other values stay as they are.
std::map<std::string, std::string> headers_from_json(std::string_view json);

}  // namespace inbox
