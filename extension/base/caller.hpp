// Keeps code of a table's owner from acting for the role that maintains the table.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Raises an error within a security-restricted operation.
void refuse_restricted();

}  // namespace outbox
