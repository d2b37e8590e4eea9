// What a destination answered, on its way into a column of ours.
#pragma once

#include <string_view>

#include "pg.hpp"

namespace outbox {

// As text of the server's, whatever bytes it is; no longer than is worth to keep.
Datum text_from_outside(std::string_view bytes);

}  // namespace outbox
