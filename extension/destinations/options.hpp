// Options of foreign servers and user mappings, on their way from the catalogs into the core.
#pragma once

#include <vector>

#include "core/option.hpp"
#include "extension/base/pg.hpp"

namespace outbox {

// Plain pointers into palloc'd memory: collected while the server may raise errors, when no C++
// object may exist; turned into Options inside call_core().
struct OptionTexts {
    int count;
    const char** names;
    const char** values;
};

OptionTexts option_texts(List* options);
std::vector<Option> to_options(const OptionTexts& texts);

// Whether options of this role may name files of the server: superusers and members of
// pg_read_server_files. In a transaction.
bool may_read_files(Oid role);

}  // namespace outbox
