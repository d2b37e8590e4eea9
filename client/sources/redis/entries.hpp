// Answers of Redis about entries of one stream, and entries as deliveries.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inbox/event.hpp"
#include "net/redis_stream_id.hpp"
#include "net/resp.hpp"

namespace inbox::redis {

// The answer must outlive the entry.
struct Entry {
    outbox::StreamId id;
    const outbox::RespValue* fields = nullptr;  // nullptr if it has left the stream
    bool is_cut = false;  // the answer was too large to keep the entry completely
};

struct Entries {
    std::vector<Entry> entries{};
    bool is_cut = false;  // the answer had more entries

    // The members below come from the answer to XAUTOCLAIM only.
    outbox::StreamId next{};               // where to go on; 0-0 for the beginning
    std::vector<outbox::StreamId> gone{};  // pending ids that are no longer in the stream
};

// Parses the answer to XREADGROUP for one stream. Returns std::nullopt if it is malformed.
std::optional<Entries> entries_read(const outbox::RespValue& answer);
// Parses the answer to XAUTOCLAIM.
std::optional<Entries> entries_claimed(const outbox::RespValue& answer);
// Parses an array of ids, such as the answer to XCLAIM ... JUSTID.
std::optional<std::vector<outbox::StreamId>> ids_in(const outbox::RespValue& answer);

// Makes a delivery from an entry with fields. `source` is the subscription, `stream` the topic of
// an entry that names none. Sets no handle. May throw std::bad_alloc.
Delivery delivery_from(const Entry& entry, const std::string& source, const std::string& stream);

}  // namespace inbox::redis
