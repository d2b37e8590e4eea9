// Parses JSON from peers and files: answers, keys. Its depth and the number of its values are limited
// here; the caller must limit its size.
#pragma once

#include <json/json.h>

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Returns std::nullopt if the text is not JSON, or beyond these limits. May throw std::bad_alloc.
std::optional<Json::Value> parse_json(std::string_view text);

// Returns the member of an object, or nullptr if it does not exist or `value` is not an object.
const Json::Value* json_member(const Json::Value& value, std::string_view name);
// Returns the text of such a member, or an empty string.
std::string json_text(const Json::Value& value, std::string_view name);

}  // namespace outbox
