#include "extension/base/shared_reading.hpp"

#include <algorithm>
#include <atomic>
#include <new>

#include "extension/base/boundary.hpp"
#include "extension/base/settings.hpp"
#include "extension/base/shared_state.hpp"

namespace outbox {

static constexpr int max_windows = 128;
// Windows of snapshots with more transactions in progress are not shared.
static constexpr uint32 max_in_progress = 64;
static constexpr char tranche[] = "pg_outbox shared reading";

struct FlatSnapshot {
    uint64 xmin, xmax;
    uint32 count;
    uint64 xip[max_in_progress];
};

// A window has the place of its number modulo max_windows.
struct ReadWindow {
    uint64 number;
    FlatSnapshot from, to;
    uint64 completed;
    int64 count;  // -1 until the log has been scanned
};

// Apart from the window, so that a search needs few cache lines.
struct WindowKey {
    Oid database;
    uint32 from;  // hash
};

struct BlockLabel {
    std::atomic<uint64> window;  // 0 if the block is free
    std::atomic<int64> after;
    std::atomic<int64> last;  // the highest number if the window ends here
};

struct SharedBlock {
    int64 last;
    bool end_of_window;
    std::atomic<bool> taken;  // by another relay
    EventImage events;
};

struct SharedReading {
    LWLockPadded* locks;  // of the windows, then of each block
    uint64 last_number;
    WindowKey keys[max_windows];
    ReadWindow windows[max_windows];
    // The last block that a relay began to read. Written without a lock.
    std::atomic<uint64> begun_window;
    std::atomic<int64> begun_after;
    std::atomic<uint32> next_block;
    uint32 block_count;  // constant
    BlockLabel* labels;
    SharedBlock* blocks;
};

static SharedReading* reading = nullptr;  // nullptr if nothing is shared
static shmem_request_hook_type previous_shmem_request_hook_of_reading = nullptr;
static shmem_startup_hook_type previous_shmem_startup_hook_of_reading = nullptr;

// ---------------------------------------------------------------------------------------------
// Memory
// ---------------------------------------------------------------------------------------------

static uint32 block_count() {
    return static_cast<uint32>(static_cast<Size>(settings::shared_read_size) * 1024 /
                               sizeof(SharedBlock));
}
static Size labels_offset() {
    return CACHELINEALIGN(sizeof(SharedReading));
}
static Size blocks_offset() {
    return CACHELINEALIGN(labels_offset() + block_count() * sizeof(BlockLabel));
}
static Size shared_size_of_reading() {
    return blocks_offset() + block_count() * sizeof(SharedBlock);
}

static void request_shmem_of_reading() {
    if (previous_shmem_request_hook_of_reading)
        previous_shmem_request_hook_of_reading();
    if (block_count() == 0)
        return;
    RequestAddinShmemSpace(shared_size_of_reading());
    RequestNamedLWLockTranche(tranche, static_cast<int>(1 + block_count()));
}

// Blocks are not written before they are used, so the memory that nobody needs is never touched.
static void startup_shmem_of_reading() {
    if (previous_shmem_startup_hook_of_reading)
        previous_shmem_startup_hook_of_reading();
    if (block_count() == 0)
        return;
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    bool found = false;
    char* memory = static_cast<char*>(
        ShmemInitStruct("pg_outbox shared reading", shared_size_of_reading(), &found));
    reading = reinterpret_cast<SharedReading*>(memory);
    if (!found) {
        new (reading) SharedReading();
        reading->locks = GetNamedLWLockTranche(tranche);
        reading->block_count = block_count();
        reading->labels = reinterpret_cast<BlockLabel*>(memory + labels_offset());
        reading->blocks = reinterpret_cast<SharedBlock*>(memory + blocks_offset());
        for (uint32 i = 0; i < reading->block_count; i++)
            new (&reading->labels[i]) BlockLabel();
    }
    LWLockRelease(AddinShmemInitLock);
}

void request_shared_reading() {
    previous_shmem_request_hook_of_reading = shmem_request_hook;
    shmem_request_hook = request_shmem_of_reading;
    previous_shmem_startup_hook_of_reading = shmem_startup_hook;
    shmem_startup_hook = startup_shmem_of_reading;
}

// ---------------------------------------------------------------------------------------------
// Windows
// ---------------------------------------------------------------------------------------------

static LWLock* windows_lock() {
    return &reading->locks[0].lock;
}

static bool flatten(const Snapshot& snapshot, FlatSnapshot& flat) {
    if (snapshot.xip.size() > max_in_progress)
        return false;
    flat.xmin = snapshot.xmin;
    flat.xmax = snapshot.xmax;
    flat.count = static_cast<uint32>(snapshot.xip.size());
    std::copy(snapshot.xip.begin(), snapshot.xip.end(), flat.xip);
    return true;
}

static void unflatten(const FlatSnapshot& flat, Snapshot& snapshot) {
    run_core([&flat, &snapshot] {
        snapshot.xmin = flat.xmin;
        snapshot.xmax = flat.xmax;
        snapshot.xip.assign(flat.xip, flat.xip + flat.count);
    });
}

static bool equal(const FlatSnapshot& a, const FlatSnapshot& b) {
    return a.xmin == b.xmin && a.xmax == b.xmax && a.count == b.count &&
           memcmp(a.xip, b.xip, a.count * sizeof *a.xip) == 0;
}

static uint32 hash_of(const FlatSnapshot& snapshot) {
    const uint64 sum = snapshot.xmin * 31 + snapshot.xmax * 7 + snapshot.count;
    return static_cast<uint32>(sum ^ sum >> 32);
}

static int place_of(uint64 number) {
    return static_cast<int>(number % max_windows);
}

// Returns the last window of the database that begins here; nullptr if there is none.
static ReadWindow* window_from(const FlatSnapshot& from) {
    const uint32 hash = hash_of(from);
    for (uint64 i = 0; i < max_windows; i++) {
        const int place = place_of(reading->last_number - i);
        const WindowKey& key = reading->keys[place];
        if (key.from == hash && key.database == MyDatabaseId &&
            equal(reading->windows[place].from, from))
            return &reading->windows[place];
    }
    return nullptr;
}

static ReadWindow* last_window() {
    for (uint64 i = 0; i < max_windows; i++)
        if (const int place = place_of(reading->last_number - i);
            reading->keys[place].database == MyDatabaseId)
            return &reading->windows[place];
    return nullptr;
}

// Returns how many other relays of the database may need a window that begins now: those that have
// read up to the oldest window that is there. A relay that hangs has not.
static int count_followers() {
    int followers = 0;
    const int oldest = place_of(reading->last_number + 1);
    const uint64 horizon =
        reading->keys[oldest].database == MyDatabaseId ? reading->windows[oldest].from.xmax : 0;
    for (int i = 0; i < shared->slots_used; i++) {
        const Wakeup& wakeup = shared->wakeups[i];
        if (i != my_slot && wakeup.kind == WakeRelays && wakeup.database == MyDatabaseId &&
            shared->slots[i].read_to >= horizon)
            followers++;
    }
    return followers;
}

// Of two snapshots of one server, the later one has all transactions that had finished in the other.
static bool is_later(const FlatSnapshot& snapshot, const Snapshot& than) {
    return snapshot.xmax >= than.xmax &&
           std::none_of(snapshot.xip, snapshot.xip + snapshot.count,
                        [&than](uint64 xid) { return than.finished(xid); });
}

static ReadWindow& add_window(const FlatSnapshot& from, const FlatSnapshot& to, uint64 completed) {
    const uint64 number = ++reading->last_number;
    const int place = place_of(number);
    reading->keys[place] = {MyDatabaseId, hash_of(from)};
    ReadWindow& window = reading->windows[place];
    window.number = number;
    window.from = from;
    window.to = to;
    window.completed = completed;
    window.count = -1;
    return window;
}

SharedWindow agree_on_window(const Snapshot& from, bool first, uint64 completed, Snapshot& to) {
    FlatSnapshot begin, end;
    SharedWindow agreed;
    // A window without transactions would lead nowhere.
    if (reading == nullptr || !flatten(from, begin) || !flatten(to, end) || equal(begin, end))
        return agreed;
    LWLockAcquire(windows_lock(), LW_EXCLUSIVE);
    agreed.followers = count_followers();
    if (agreed.followers == 0) {
        LWLockRelease(windows_lock());
        return agreed;
    }
    const ReadWindow* window = first ? nullptr : window_from(begin);
    if (window == nullptr) {
        const ReadWindow* last = last_window();
        const bool joins = last != nullptr && is_later(last->to, from) && !equal(last->to, begin);
        window = joins ? &add_window(begin, last->to, last->completed)
                       : &add_window(begin, end, completed);
    }
    agreed.number = window->number;
    agreed.is_old = !equal(window->to, end) && window->completed != completed;
    end = window->to;
    LWLockRelease(windows_lock());
    unflatten(end, to);
    return agreed;
}

void window_is_read(uint64 number, int64 count) {
    LWLockAcquire(windows_lock(), LW_EXCLUSIVE);
    if (ReadWindow& window = reading->windows[place_of(number)]; window.number == number)
        window.count = count;
    LWLockRelease(windows_lock());
}

SharedWindow find_window(const Snapshot& from, uint64 completed, Snapshot& to) {
    FlatSnapshot begin, end;
    SharedWindow found;
    if (reading == nullptr || !flatten(from, begin))
        return found;
    LWLockAcquire(windows_lock(), LW_SHARED);
    const ReadWindow* window = window_from(begin);
    if (window != nullptr && window->count >= 0) {
        found = {.number = window->number,
                 .count = window->count,
                 .is_old = window->completed != completed,
                 .followers = count_followers()};
        end = window->to;
    }
    LWLockRelease(windows_lock());
    if (found.number != 0)
        unflatten(end, to);
    return found;
}

// ---------------------------------------------------------------------------------------------
// Blocks
// ---------------------------------------------------------------------------------------------

static LWLock* block_lock(int index) {
    return &reading->locks[1 + index].lock;
}

static bool has_next(const BlockLabel& label, uint64 window, int64 after) {
    return label.window.load(std::memory_order_relaxed) == window &&
           label.after.load(std::memory_order_relaxed) <= after &&
           label.last.load(std::memory_order_relaxed) > after;
}

static bool any_has_next(uint64 window, int64 after) {
    for (uint32 i = 0; i < reading->block_count; i++)
        if (has_next(reading->labels[i], window, after))
            return true;
    return false;
}

// True if other relays have taken any of the blocks of the window that are still there.
static bool any_taken(uint64 window) {
    for (uint32 i = 0; i < reading->block_count; i++)
        if (reading->labels[i].window.load(std::memory_order_relaxed) == window &&
            reading->blocks[i].taken.load(std::memory_order_relaxed))
            return true;
    return false;
}

bool share_block(uint64 window, int64 after, int64 last, bool end_of_window,
                 std::span<const Event> events) {
    if (any_has_next(window, after))  // another relay was faster
        return true;
    const int index = static_cast<int>(reading->next_block.fetch_add(1, std::memory_order_relaxed) %
                                       reading->block_count);
    if (!LWLockConditionalAcquire(block_lock(index), LW_EXCLUSIVE))
        return true;
    BlockLabel& label = reading->labels[index];
    SharedBlock& block = reading->blocks[index];
    const bool in_vain = label.window.exchange(0, std::memory_order_relaxed) == window &&
                         !block.taken.load(std::memory_order_relaxed) && !any_taken(window);
    if (!in_vain && block.events.assign(events)) {
        block.last = last;
        block.end_of_window = end_of_window;
        block.taken.store(false, std::memory_order_relaxed);
        label.after.store(after, std::memory_order_relaxed);
        label.last.store(end_of_window ? PG_INT64_MAX : last, std::memory_order_relaxed);
        label.window.store(window, std::memory_order_relaxed);
    }
    LWLockRelease(block_lock(index));
    return !in_vain;
}

// Two relays may begin blocks at the same time, and one of them is forgotten, which costs no more than
// reading its block twice.
bool is_begun(uint64 window, int64 after) {
    return reading->begun_window.load(std::memory_order_relaxed) == window &&
           reading->begun_after.load(std::memory_order_relaxed) == after;
}

void begin_block(uint64 window, int64 after) {
    reading->begun_after.store(after, std::memory_order_relaxed);
    reading->begun_window.store(window, std::memory_order_relaxed);
}

void end_block(uint64 window, int64 after) {
    if (is_begun(window, after))
        reading->begun_window.store(0, std::memory_order_relaxed);
}

BorrowedBlock borrow_block(uint64 window, int64 after) {
    for (int i = 0; i < static_cast<int>(reading->block_count); i++) {
        if (!has_next(reading->labels[i], window, after) ||
            !LWLockConditionalAcquire(block_lock(i), LW_SHARED))
            continue;
        SharedBlock& block = reading->blocks[i];
        if (has_next(reading->labels[i], window, after)) {  // it has not been overwritten
            block.taken.store(true, std::memory_order_relaxed);
            return {i, block.last, block.end_of_window, block.events.events()};
        }
        LWLockRelease(block_lock(i));
    }
    return {};
}

void give_back(const BorrowedBlock& block) {
    LWLockRelease(block_lock(block.index));
}

}  // namespace outbox
