// Tells which statements of a handler may change its session beyond the transaction.
#pragma once

#include <string_view>

namespace inbox {

// Returns whether a statement may change more than rows: settings, temporary tables, locks that
// outlive the transaction, prepared statements. What a function of the database does cannot be seen.
bool may_change_session(std::string_view statement);

}  // namespace inbox
