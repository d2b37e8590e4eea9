// Checks that bytes are exactly one JSON value (RFC 8259) in UTF-8, with only blanks around it.
//
// Only such bytes may become a part of a document that we write: anything else could end the
// document early and begin another one.
#pragma once

#include <string_view>

namespace outbox {

// Refuses values nested deeper than 1,000 levels: a receiver's parser might not survive them.
bool is_json_value(std::string_view bytes) noexcept;

}  // namespace outbox
