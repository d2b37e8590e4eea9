// The configuration of a destination, as the catalogs and the settings have it now.
#pragma once

#include "core/destination.hpp"
#include "core/pipeline/pipeline.hpp"
#include "extension/destinations/expressions.hpp"
#include "telemetry/tracing.hpp"

namespace outbox {

struct DestinationConfig {
    std::string name;
    std::string source;  // the current database
    std::vector<Option> server_options;
    std::vector<Option> mapping_options;
    DestinationDefaults defaults;
    bool password_required = false;
    bool may_read_files = false;
    Oid owner = InvalidOid;  // of the foreign server
    Pipeline::Limits limits;
    Tracing tracing;

    bool operator==(const DestinationConfig&) const = default;

    // Returns the destination that this configuration describes.
    Result<Destination> destination() const;
    // The options filter and payload. This object must outlive them.
    ExpressionTexts expressions() const noexcept;
};

// Needs a transaction. An invalid `server` means the destination of outbox.default_destination.
// Returns false if there is none.
bool load_config(Oid server, DestinationConfig& config);

}  // namespace outbox
