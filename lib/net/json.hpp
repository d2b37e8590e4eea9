// JSON that somebody else wrote: answers, key files. Its depth is bounded; its size the caller sees
// to.
#pragma once

#include <json/json.h>

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Nothing: it is no JSON. May throw std::bad_alloc.
std::optional<Json::Value> parse_json(std::string_view text);

// The member of an object; nullptr: there is none, or `value` is no object.
const Json::Value* json_member(const Json::Value& value, std::string_view name);
// The same of a member that is a text; empty: there is none.
std::string json_text(const Json::Value& value, std::string_view name);

}  // namespace outbox
