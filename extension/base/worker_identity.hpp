// Kinds of workers, and the object that each one serves.
#pragma once

#include <cstdint>
#include <type_traits>

#include "extension/base/pg.hpp"

namespace outbox {

enum class WorkerKind : std::uint32_t { none, keeper, relay, processor, backfill };

// Identifies what a worker serves. At most one worker runs for each identity.
struct WorkerIdentity {
    WorkerKind kind;
    Oid database;
    Oid object;  // a relay's foreign server (invalid: the default destination), a processor's
                 // consumer, the id of a backfill
    Oid role;    // the role that a processor runs as

    bool operator==(const WorkerIdentity&) const = default;
};
// This is a hash key that is compared byte by byte, so it must have no padding.
static_assert(std::has_unique_object_representations_v<WorkerIdentity>);

}  // namespace outbox
