// Answers of Redis about entries of one stream, and entries as deliveries.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inbox/event.hpp"
#include "net/redis_stream_id.hpp"
#include "net/resp.hpp"

namespace inbox::redis {

// The answer must outlive it.
struct Entry {
    outbox::StreamId id;
    const outbox::RespValue* fields = nullptr;  // nullptr: it has left the stream
    bool is_cut = false;                        // the answer was too large to keep all of the entry
};

struct Entries {
    std::vector<Entry> entries{};
    bool is_cut = false;  // the answer had more entries

    // The rest is of the answer to XAUTOCLAIM only.
    outbox::StreamId next{};               // where to go on; 0-0: at the beginning
    std::vector<outbox::StreamId> gone{};  // were pending, are no longer in the stream
};

// Of the answer to XREADGROUP for one stream; std::nullopt if it makes no sense.
std::optional<Entries> entries_read(const outbox::RespValue& answer);
// Of the answer to XAUTOCLAIM.
std::optional<Entries> entries_claimed(const outbox::RespValue& answer);
// Of an array of ids, as XCLAIM ... JUSTID answers with.
std::optional<std::vector<outbox::StreamId>> ids_in(const outbox::RespValue& answer);

// Of an entry with fields. `source` is the subscription, `stream` the topic of an entry that names none.
// Sets no handle. May throw std::bad_alloc.
Delivery delivery_from(const Entry& entry, const std::string& source, const std::string& stream);

}  // namespace inbox::redis
