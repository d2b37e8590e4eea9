// The script of the SQL edition, made by cmake/EmbedEdition.cmake.
#pragma once

namespace outboxctl {

extern const char* const edition_version;
extern const char* const edition_script;

}  // namespace outboxctl
