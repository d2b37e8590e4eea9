// What kinds of workers there are, and whom each serves.
#pragma once

#include <cstdint>
#include <type_traits>

#include "extension/base/pg.hpp"

namespace outbox {

enum class WorkerKind : std::uint32_t { none, keeper, relay, processor, backfill };

// Whom a worker serves. The same one is never started twice.
struct WorkerIdentity {
    WorkerKind kind;
    Oid database;
    Oid object;  // a relay's foreign server (invalid: the default destination), a processor's
                 // consumer, the id of a backfill
    Oid role;    // as whom a processor runs

    bool operator==(const WorkerIdentity&) const = default;
};
// It is a hash key, compared byte by byte: padding would be part of it.
static_assert(std::has_unique_object_representations_v<WorkerIdentity>);

}  // namespace outbox
