// Reads the headers of an event: a JSON object of scalars, as the server prints a jsonb. Values
// keep their text, so a number loses no digit.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/event.hpp"

namespace outbox::sql {

struct FlatMember {
    std::string_view name;   // without quotes, with escapes
    std::string_view value;  // a string without quotes, with escapes; otherwise the literal
    Header::Kind kind = Header::Kind::string;
};

// Replaces `members`. The value of an object or array, which enqueue() refuses, reads as null.
// Returns false if the text is not a JSON object. Members after the first max_members are left out.
bool read_flat_json(std::string_view text, std::vector<FlatMember>& members,
                    std::size_t max_members = 64);

// Appends the text of a JSON string whose quotes have been removed. It is never longer than `text`.
void append_unescaped(std::string& out, std::string_view text);

}  // namespace outbox::sql
