// Options of destinations whose events are fetched. Their code is SQL: sql/pg_outbox/pull.sql.
#pragma once

#include "core/sink_declaration.hpp"

namespace outbox {

extern const SinkDeclaration pull_declaration;

}  // namespace outbox
