#include "extension/capture/removed_rows.hpp"

namespace outbox {

// 1 MB. Transactions that move more rows than this delete and insert them in the same order, so that
// the first ones tell.
static constexpr long max_removed = 20'000;

struct RemovedRow {
    uint64 key;
    int64 version;
};

// Ends with the transaction. A savepoint that is rolled back leaves its rows here: they are in the
// table again, and cannot be inserted before they are deleted again.
static HTAB* removed = nullptr;

static void forget_removed(void*) {
    removed = nullptr;
}

static void make_removed() {
    HASHCTL control{};
    control.keysize = sizeof(uint64);
    control.entrysize = sizeof(RemovedRow);
    control.hcxt = TopTransactionContext;
    removed =
        hash_create("outbox removed rows", 128, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    auto* callback = static_cast<MemoryContextCallback*>(
        MemoryContextAllocZero(TopTransactionContext, sizeof(MemoryContextCallback)));
    callback->func = forget_removed;
    MemoryContextRegisterResetCallback(TopTransactionContext, callback);
}

void note_removed(uint64 key, int64 version) {
    if (removed == nullptr)
        make_removed();
    const bool full = hash_get_num_entries(removed) >= max_removed;
    auto* row = static_cast<RemovedRow*>(
        hash_search(removed, &key, full ? HASH_FIND : HASH_ENTER, nullptr));
    if (row != nullptr)
        row->version = version;
}

bool any_removed() {
    return removed != nullptr;
}

bool take_removed(uint64 key, int64& version) {
    if (removed == nullptr)
        return false;
    const auto* row = static_cast<RemovedRow*>(hash_search(removed, &key, HASH_REMOVE, nullptr));
    if (row != nullptr)
        version = row->version;
    return row != nullptr;
}

}  // namespace outbox
