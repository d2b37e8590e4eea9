#include "extension/base/crashes.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "extension/base/settings.hpp"
#include "extension/base/shared_state.hpp"

namespace outbox {

// The first crash causes no pause. From the second in a row the pause doubles, from one second to
// one hour; for a database as a whole it starts with the fifth.
static constexpr int harmless_crashes = 1;
static constexpr int harmless_crashes_of_database = 4;
static constexpr int max_crash_pause = 3600;  // seconds
// A worker that lives for this long ends the row of crashes.
static constexpr int healthy_after = 600;  // seconds

static int pause_after(const CrashNote& note) {
    const int harmless =
        note.identity.kind == WorkerKind::none ? harmless_crashes_of_database : harmless_crashes;
    if (note.count <= harmless)
        return 0;
    return std::min(1 << std::min(note.count - harmless - 1, 16), max_crash_pause);
}

static bool in_a_row(const CrashNote& note, TimestampTz now) {
    return note.count > 0 && note.at <= now &&
           !TimestampDifferenceExceeds(note.at, now, (pause_after(note) + healthy_after) * 1000);
}

// ---------------------------------------------------------------------------------------------
// The postmaster
// ---------------------------------------------------------------------------------------------

static constexpr const char* file_name = "pg_stat/pg_outbox.crashes";
static constexpr std::uint32_t file_version = 0x6f620002;

struct CrashFile {
    std::uint32_t version;
    std::uint32_t size;
    CrashNote notes[max_crash_notes];
};

// Only the postmaster writes this. Children inherit it by fork() and only read it.
static CrashNote notes[max_crash_notes];
static const WorkerSlot* watched_slots = nullptr;
static int watched_count = 0;

const CrashNote* crash_notes() {
    return notes;
}

static CrashNote& note_for(const WorkerIdentity& identity) {
    for (CrashNote& note : notes)
        if (note.count > 0 && note.identity == identity)
            return note;
    CrashNote& oldest = *std::min_element(
        std::begin(notes), std::end(notes), [](const CrashNote& a, const CrashNote& b) {
            return a.count == 0 || b.count == 0 ? a.count < b.count : a.at < b.at;
        });
    oldest = {};
    oldest.identity = identity;
    return oldest;
}

static void note_crash(const WorkerIdentity& identity, const NameData& name, int signal,
                       std::int64_t at_work, TimestampTz now) {
    CrashNote& note = note_for(identity);
    note.count = in_a_row(note, now) ? note.count + 1 : 1;
    note.name = name;
    NameStr(note.name)[NAMEDATALEN - 1] = '\0';
    note.signal = signal;
    note.at_work = at_work;
    note.at = now;
}

// Returns whether the worker caused the crash: its slot has a signal as its mark, or with `marked`
// false no mark, which means SIGKILL.
static bool crashed(const WorkerSlot& slot, bool marked) {
    const int mark = slot.ended_by;
    return slot.attached && slot.kind > WorkerKind::none && slot.kind <= WorkerKind::backfill &&
           (marked ? mark > 0 : mark == 0);
}

static bool note_crashes(bool marked) {
    const TimestampTz now = GetCurrentTimestamp();
    bool any = false;
    for (int i = 0; i < watched_count; i++) {
        const WorkerSlot& slot = watched_slots[i];
        if (!crashed(slot, marked))
            continue;
        const int signal = marked ? slot.ended_by.load() : SIGKILL;
        note_crash({slot.kind, slot.database, slot.object, slot.role}, slot.name, signal,
                   slot.at_work, now);
        note_crash({WorkerKind::none, slot.database, InvalidOid, InvalidOid}, slot.name, signal, 0,
                   now);
        any = true;
    }
    return any;
}

// Reports no errors: the file only matters to servers that do not start over by themselves.
static void write_file() {
    const int file =
        open(file_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (file < 0)
        return;
    static CrashFile content;
    content.version = file_version;
    content.size = sizeof notes;
    memcpy(content.notes, notes, sizeof notes);
    const bool complete = write(file, &content, sizeof content) == sizeof content;
    close(file);
    if (!complete)
        unlink(file_name);
}

static void read_file() {
    const int file = open(file_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return;
    static CrashFile content;
    const bool complete = read(file, &content, sizeof content) == sizeof content &&
                          content.version == file_version && content.size == sizeof notes;
    close(file);
    if (!complete)
        return;
    memcpy(notes, content.notes, sizeof notes);
    for (CrashNote& note : notes) {
        note.count = std::clamp(note.count, 0, 1'000'000);
        NameStr(note.name)[NAMEDATALEN - 1] = '\0';
    }
}

// Runs in the postmaster before the shared memory is dropped, because the server starts over or
// ends. It is not known yet which of the two happens. SIGKILL is only assumed if no slot has
// a signal.
static void take_notes(int exit_code, Datum) {
    const bool any = note_crashes(true) || note_crashes(false);
    if (any && exit_code != 0)
        write_file();
}

void watch_shared_state_for_crashes() {
    if (watched_slots == nullptr)
        read_file();
    unlink(file_name);
    watched_slots = shared->slots;
    watched_count = shared->slot_count;
    before_shmem_exit(take_notes, 0);
}

// ---------------------------------------------------------------------------------------------
// Workers
// ---------------------------------------------------------------------------------------------

static constexpr int told_to_quit = -1;
static constexpr int crash_signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
static struct sigaction previous_actions[lengthof(crash_signals)];

// Async-signal-safe: it only stores a number.
static void mark_my_slot(int mark) {
    if (my_slot >= 0)
        shared->slots[my_slot].ended_by.store(mark, std::memory_order_relaxed);
}

static void on_quit(int) {
    mark_my_slot(told_to_quit);
    _exit(2);  // like SignalHandlerForCrashExit()
}

static void on_crash(int signal, siginfo_t* info, void*) {
    // Since version 16 the server can send SIGABRT to tell workers to quit.
    const bool told = info->si_code == SI_USER && info->si_pid == PostmasterPid;
    mark_my_slot(told ? told_to_quit : signal);
    // Let the signal take its usual course: a fault happens again when this returns, and a signal
    // that was sent is raised again.
    for (size_t i = 0; i < lengthof(crash_signals); i++)
        if (crash_signals[i] == signal)
            sigaction(signal, &previous_actions[i], nullptr);
    if (info->si_code <= 0)
        ::raise(signal);
}

void mark_slot_on_crash() {
    pqsignal(SIGQUIT, on_quit);

    static char stack[32 * 1024];  // the ordinary stack may have overflowed
    stack_t alternative = {};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    const bool has_stack = sigaltstack(&alternative, nullptr) == 0;

    struct sigaction action = {};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | (has_stack ? SA_ONSTACK : 0);
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < lengthof(crash_signals); i++)
        sigaction(crash_signals[i], &action, &previous_actions[i]);
}

// ---------------------------------------------------------------------------------------------
// Parents of workers
// ---------------------------------------------------------------------------------------------

TimestampTz held_back_until(const CrashNote& note) {
    const TimestampTz now = GetCurrentTimestamp();
    if (!in_a_row(note, now))
        return 0;
    const TimestampTz until =
        TimestampTzPlusMilliseconds(note.at, pause_after(note) * INT64CONST(1000));
    return until > now ? until : 0;
}

TimestampTz held_back_until(const WorkerIdentity& identity, const CrashNote** why) {
    // A pause of the whole database holds back its keeper, without which no other worker starts.
    const WorkerIdentity all = {
        identity.kind == WorkerKind::keeper ? WorkerKind::none : identity.kind, identity.database,
        identity.object, identity.role};
    TimestampTz until = 0;
    for (const CrashNote& note : notes) {
        if (note.count == 0 || !(note.identity == identity || note.identity == all))
            continue;
        if (const TimestampTz held = held_back_until(note); held > until) {
            until = held;
            *why = &note;
        }
    }
    return until;
}

const CrashNote* crashes_of(const WorkerIdentity& identity) {
    const TimestampTz now = GetCurrentTimestamp();
    for (const CrashNote& note : notes)
        if (note.identity == identity && in_a_row(note, now))
            return &note;
    return nullptr;
}

}  // namespace outbox
