#include "bgworker/relay/window_spool.hpp"

#include <algorithm>

namespace outbox {

static constexpr size_t first_capacity = 1024;
static constexpr size_t run_capacity = 1024 * 1024;      // 16 MB
static constexpr size_t merge_memory = 8 * 1024 * 1024;  // for the buffers of all runs
static constexpr size_t smallest_buffer = 64;            // entries

static_assert(sizeof(WindowEntry) == 16);

// A sorted part of the file, and the piece of it that is in memory.
struct Run {
    size_t left_in_file;
    int file_number;  // where the part that is still in the file begins
    off_t offset;
    WindowEntry* buffer;
    size_t next;
    size_t filled;
};

struct WindowSpool {
    MemoryContext context;  // lives as long as one window
    WindowEntry* entries;   // the run being collected, or all entries
    size_t capacity;
    size_t count;
    size_t next;
    BufFile* file;  // nullptr if everything is in memory
    Run* runs;      // while reading, a heap by the position at their front
    size_t run_count;
    size_t run_slots;
    size_t buffer_capacity;
};

static bool by_position(const WindowEntry& a, const WindowEntry& b) {
    return a.position < b.position;
}

// Order for std::*_heap, which put the greatest first: here the run with the lowest position.
static bool by_front(const Run& a, const Run& b) {
    return a.buffer[a.next].position > b.buffer[b.next].position;
}

WindowSpool* create_spool() {
    auto* spool =
        static_cast<WindowSpool*>(MemoryContextAllocZero(TopMemoryContext, sizeof(WindowSpool)));
    spool->context =
        AllocSetContextCreate(TopMemoryContext, "outbox window", ALLOCSET_DEFAULT_SIZES);
    return spool;
}

void reset_spool(WindowSpool* spool) {
    if (spool->file != nullptr)
        BufFileClose(spool->file);
    spool->file = nullptr;
    spool->runs = nullptr;
    spool->run_count = spool->run_slots = 0;
    spool->count = spool->next = 0;
    if (spool->capacity > first_capacity || spool->entries == nullptr) {
        MemoryContextReset(spool->context);
        spool->capacity = first_capacity;
        spool->entries = static_cast<WindowEntry*>(
            MemoryContextAlloc(spool->context, first_capacity * sizeof(WindowEntry)));
    }
}

static void sort_entries(WindowSpool* spool) {
    // Entries of one transaction come in order, and nearly always those of several.
    WindowEntry* end = spool->entries + spool->count;
    if (!std::is_sorted(spool->entries, end, by_position))
        std::sort(spool->entries, end, by_position);
}

static void write_run(WindowSpool* spool) {
    MemoryContext outer = MemoryContextSwitchTo(spool->context);
    if (spool->file == nullptr) {
        PrepareTempTablespaces();
        spool->file = BufFileCreateTemp(true);
    }
    if (spool->run_count == spool->run_slots) {
        spool->run_slots = Max(16, spool->run_slots * 2);
        const Size size = spool->run_slots * sizeof(Run);
        spool->runs =
            static_cast<Run*>(spool->runs == nullptr ? palloc(size) : repalloc(spool->runs, size));
    }
    Run* run = &spool->runs[spool->run_count++];
    memset(run, 0, sizeof *run);
    BufFileTell(spool->file, &run->file_number, &run->offset);
    run->left_in_file = spool->count;
    sort_entries(spool);
    BufFileWrite(spool->file, spool->entries, spool->count * sizeof(WindowEntry));
    spool->count = 0;
    MemoryContextSwitchTo(outer);
}

void add_to_spool(WindowSpool* spool, WindowEntry entry) {
    if (spool->count == spool->capacity) {
        if (spool->capacity < run_capacity) {
            spool->capacity *= 2;
            spool->entries = static_cast<WindowEntry*>(
                repalloc_huge(spool->entries, spool->capacity * sizeof(WindowEntry)));
        } else {
            write_run(spool);
        }
    }
    spool->entries[spool->count++] = entry;
}

static void fill_buffer(WindowSpool* spool, Run* run) {
    const size_t n = Min(run->left_in_file, spool->buffer_capacity);
    if (BufFileSeek(spool->file, run->file_number, run->offset, SEEK_SET) != 0) {
        const char* why = strerror(errno);  // ISO C++ knows no %m
        ereport(ERROR,
                (errcode_for_file_access(), errmsg("could not seek in temporary file: %s", why)));
    }
    compat::read_exactly(spool->file, run->buffer, n * sizeof(WindowEntry));
    BufFileTell(spool->file, &run->file_number, &run->offset);
    run->left_in_file -= n;
    run->filled = n;
    run->next = 0;
}

uint64 sort_spool(WindowSpool* spool) {
    if (spool->file == nullptr) {
        sort_entries(spool);
        return spool->count;
    }
    if (spool->count > 0)
        write_run(spool);
    pfree(spool->entries);
    spool->entries = nullptr;
    spool->capacity = 0;

    uint64 total = 0;
    spool->buffer_capacity =
        Max(smallest_buffer, merge_memory / spool->run_count / sizeof(WindowEntry));
    for (size_t i = 0; i < spool->run_count; i++) {
        Run* run = &spool->runs[i];
        total += run->left_in_file;
        run->buffer = static_cast<WindowEntry*>(
            MemoryContextAlloc(spool->context, spool->buffer_capacity * sizeof(WindowEntry)));
        fill_buffer(spool, run);
    }
    std::make_heap(spool->runs, spool->runs + spool->run_count, by_front);
    return total;
}

const WindowEntry* peek_spool(WindowSpool* spool) {
    if (spool->file == nullptr)
        return spool->next < spool->count ? &spool->entries[spool->next] : nullptr;
    return spool->run_count > 0 ? &spool->runs[0].buffer[spool->runs[0].next] : nullptr;
}

void drop_from_spool(WindowSpool* spool) {
    if (spool->file == nullptr) {
        spool->next++;
        return;
    }
    std::pop_heap(spool->runs, spool->runs + spool->run_count, by_front);
    Run* run = &spool->runs[spool->run_count - 1];
    if (++run->next == run->filled && run->left_in_file > 0)
        fill_buffer(spool, run);
    if (run->next < run->filled)
        std::push_heap(spool->runs, spool->runs + spool->run_count, by_front);
    else
        spool->run_count--;
}

}  // namespace outbox
