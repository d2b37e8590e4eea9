// The script of the SQL edition, and that of outboxctl migrate-edition; made by cmake/EmbedEdition.cmake.
#pragma once

namespace outboxctl {

extern const char* const edition_version;
extern const char* const edition_script;
extern const char* const migration_script;

// The first statement of a transaction that runs one of them: processes that do so at the same time wait.
// The number is arbitrary.
constexpr const char* wait_for_others = "SELECT pg_advisory_xact_lock(5127840396617720331)";

}  // namespace outboxctl
