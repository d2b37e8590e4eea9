// Values as PostgreSQL reads and writes them.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

// Eight, four, four, four and twelve hexadecimal digits.
bool is_uuid(std::string_view text);
// An id for an event that came without a valid one: the same for the same texts. Version 8 (RFC
// 9562).
std::string made_uuid(std::string_view source, std::string_view message_id);

// '{"a","b"}'
std::string array_literal(std::span<const std::string> elements);
// '2024-02-29T12:00:00.123456Z'; std::nullopt for a time that is not set.
std::optional<std::string> time_literal(Time time);

// What is no valid UTF-8, and NUL, are replaced: a database refuses both.
std::string clean_utf8(std::string_view text, std::string_view replacement = "?");

// An object; nothing when there are none.
std::optional<std::string> headers_to_json(const std::map<std::string, std::string>& headers);
// Members of a JSON object as jsonb prints it: strings without quotes, everything else as it
// stands; null is left out.
std::map<std::string, std::string> headers_from_json(std::string_view json);

}  // namespace inbox
