// The script of the SQL edition, and that of outboxctl migrate-edition; made by cmake/EmbedEdition.cmake.
#pragma once

namespace outboxctl {

extern const char* const edition_version;
extern const char* const edition_script;
extern const char* const migration_script;

}  // namespace outboxctl
