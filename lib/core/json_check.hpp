// Whether bytes are exactly one JSON value (RFC 8259), as UTF-8, with nothing but blanks around it.
//
// Only such bytes may become a part of a document that we write: anything else could end the
// document early and begin another one.
#pragma once

#include <string_view>

namespace outbox {

// Values nested deeper than 1,000 levels count as no JSON: a receiver's parser may not survive them.
bool is_json_value(std::string_view bytes) noexcept;

}  // namespace outbox
