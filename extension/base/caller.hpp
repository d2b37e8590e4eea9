// Whether somebody asks for what a function is called to do.
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Raises an error in a security-restricted operation.
void refuse_restricted();

}  // namespace outbox
