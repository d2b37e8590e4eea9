// Passes options of foreign servers and user mappings from the catalogs to the core.
#pragma once

#include <vector>

#include "core/option.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// Plain pointers into palloc'd memory. They are collected while the server may raise errors and no
// C++ object may exist, and turned into Options inside call_core().
struct OptionTexts {
    int count;
    const char** names;
    const char** values;
};

OptionTexts option_texts(List* options);
std::vector<Option> to_options(const OptionTexts& texts);

// Returns whether options of this role may name files of the server: for superusers and members of
// pg_read_server_files. Needs a transaction.
bool may_read_files(Oid role);

}  // namespace outbox
