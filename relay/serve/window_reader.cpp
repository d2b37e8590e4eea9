#include "relay/serve/window_reader.hpp"

#include <algorithm>
#include <utility>

namespace outbox::relay {

// Rows are fetched in blocks of about this many bytes, so that two or three of them do not take
// much memory.
static constexpr std::size_t fetch_bytes = 512 * 1024;
static constexpr std::int32_t max_rows_at_once = 1024;
// The first places of a window should be there soon, because nothing else can be done meanwhile.
static constexpr std::int32_t first_entries = 8'000;
// Blocks that are under way or wait for the relay: usually, and while memory is short.
static constexpr std::size_t max_fetches = 3;
static constexpr std::size_t fewest_fetches = 1;
// Reading ahead may take this part of a share of memory.
static constexpr std::size_t part_of_share = 4;
static constexpr std::size_t fewest_entries = 1000;

void WindowReader::start(std::int32_t number, std::vector<std::string> patterns,
                         const calls::Evaluation& evaluation) {
    reset();
    evaluation_ = evaluation;
    number_ = number;
    patterns_ = std::move(patterns);
}

void WindowReader::reset() noexcept {
    generation_++;
    in_window_ = false;
    found_.reset();
    entries_ = {};
    entries_memory_.set(0);
    next_entry_ = 0;
    complete_ = true;
    asked_for_entries_ = false;
    entries_at_once_ = first_entries;
    fetches_.clear();
}

void WindowReader::run(Call call, void (WindowReader::*done)(Answer, std::uint64_t),
                       std::uint64_t id) {
    under_way_++;
    sessions_.run({.call = std::move(call),
                   .done =
                       [this, done, id, generation = generation_](Answer answer) {
                           under_way_--;
                           if (generation == generation_)
                               (this->*done)(std::move(answer), id);
                       }},
                  SessionPool::Urgency::reads);
}

void WindowReader::fail(const Answer& answer) {
    owner_.reading_failed(answer);
}

// Perhaps the answer was too long, or expressions took too long. A timeout costs more, so it takes
// fewer steps to a single event, whose answer says that it is the event's fault.
void WindowReader::read_less_at_once(const Answer& answer) noexcept {
    rows_at_once_ = std::max(rows_at_once_ / (answer.sqlstate == query_canceled ? 16 : 4), 1);
}

// -------------------------------------------------------------------------------------------------
// Looking
// -------------------------------------------------------------------------------------------------

void WindowReader::look(const calls::Range& range) {
    reset();
    range_ = range;
    run(calls::look(number_, patterns_, range_, rows_at_once_, evaluation_),
        &WindowReader::take_look);
}

static Answer malformed() {
    return {.error = "the database answers in another form than expected", .sqlstate = "XX000"};
}

void WindowReader::take_look(Answer answer, std::uint64_t) {
    if (!answer.ok) {
        if (answer.sqlstate == query_canceled)
            read_less_at_once(answer);
        fail(answer);
        return;
    }
    const auto found = calls::found_of(answer.rows);
    if (found && found->held) {
        owner_.reading_held();
        return;
    }
    Fetch fetch{.arrived = true, .next_row = 1, .memory = MemoryCharge(&budget_)};
    fetch.memory.set(answer.rows.memory());
    if (!found || !fetch.rows.start(std::move(answer.rows))) {
        fail(malformed());
        return;
    }
    in_window_ = found->events > 0;
    end_ = found->end;
    last_position_ = entries_to_ = found->last_position;
    complete_ = found->events <= rows_at_once_;
    if (!complete_)
        entries_to_ = 0;
    else if (found->events > 0)
        fetches_.push_back(std::move(fetch));
    found_ = found;
    request_more();
    owner_.read_more();
}

std::optional<calls::Found> WindowReader::look_result() {
    return std::exchange(found_, std::nullopt);
}

// -------------------------------------------------------------------------------------------------
// Large windows
// -------------------------------------------------------------------------------------------------

std::size_t WindowReader::fetches_allowed() const noexcept {
    return bytes_of_fetch() < fetch_bytes ? fewest_fetches : max_fetches;
}

std::size_t WindowReader::bytes_of_fetch() const noexcept {
    return std::min(fetch_bytes, budget_.share() / part_of_share);
}

std::int32_t WindowReader::entries_wanted() const noexcept {
    const std::size_t fitting = budget_.share() / part_of_share / sizeof(Entry);
    return static_cast<std::int32_t>(std::clamp<std::size_t>(
        fitting, fewest_entries, static_cast<std::size_t>(entries_at_once_)));
}

// The next places are asked for while there are rows to read at most of the last ones: to find a
// place takes about half as long as to read a row. Each call passes over the index of the whole
// window, so the number grows.
void WindowReader::request_more() {
    while (fetches_.size() < fetches_allowed() && next_entry_ < entries_.size())
        request_rows();
    const std::int32_t at_once = entries_wanted();
    if (entries_.size() - next_entry_ > static_cast<std::size_t>(at_once) / 8 * 5 || complete_ ||
        asked_for_entries_)
        return;
    asked_for_entries_ = true;
    entries_memory_.set((entries_.size() + static_cast<std::size_t>(at_once)) * sizeof(Entry));
    run(calls::entries(number_, patterns_, range_, end_, entries_to_, at_once),
        &WindowReader::take_entries);
    entries_at_once_ = std::min(entries_at_once_ * 3, max_entries);
}

void WindowReader::take_entries(Answer answer, std::uint64_t) {
    asked_for_entries_ = false;
    if (!answer.ok) {
        fail(answer);
        return;
    }
    const Rows& rows = answer.rows;
    const auto segments = rows.smallints(0, rows.column("segments"));
    const auto places = rows.places(0, rows.column("places"));
    const auto positions = rows.bigints(0, rows.column("positions"));
    if (rows.size() != 1 || segments.size() != places.size() || places.size() != positions.size()) {
        fail(malformed());
        return;
    }
    forget_entries();
    entries_.reserve(entries_.size() + positions.size());
    for (std::size_t i = 0; i < positions.size(); i++)
        entries_.push_back({positions[i], places[i], segments[i]});
    entries_memory_.set(entries_.capacity() * sizeof(Entry));
    entries_to_ = rows.bigint(0, rows.column("last_position")).value_or(entries_to_);
    complete_ = rows.boolean(0, rows.column("complete"));
    request_more();
    owner_.read_more();
}

// Forgets all places, and the rows that have not arrived: they are looked for again. Places become
// invalid when the log is written anew.
void WindowReader::forget_places() {
    const auto missing = std::find_if(fetches_.begin(), fetches_.end(),
                                      [](const Fetch& fetch) { return !fetch.arrived; });
    if (missing != fetches_.end())
        entries_to_ = missing->positions.front() - 1;
    else if (next_entry_ < entries_.size())
        entries_to_ = entries_[next_entry_].position - 1;
    fetches_.erase(missing, fetches_.end());
    entries_ = {};
    entries_memory_.set(0);
    next_entry_ = 0;
    complete_ = false;
    asked_for_entries_ = false;
    generation_++;
}

// Forgets the places of rows that have arrived. Others may be asked for again.
void WindowReader::forget_entries() {
    std::size_t used = next_entry_;
    for (const Fetch& fetch : fetches_)
        if (!fetch.arrived)
            used = std::min(used, fetch.first_entry);
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(used));
    next_entry_ -= used;
    for (Fetch& fetch : fetches_)
        fetch.first_entry -= std::min(fetch.first_entry, used);
}

// Rows of one segment at a time.
void WindowReader::request_rows() {
    Fetch fetch{
        .id = ++fetches_made_, .first_entry = next_entry_, .memory = MemoryCharge(&budget_)};
    fetch.memory.set(bytes_of_fetch());
    const std::uint16_t segment = entries_[next_entry_].segment;
    std::vector<Place> places;
    while (next_entry_ < entries_.size() && entries_[next_entry_].segment == segment &&
           places.size() < static_cast<std::size_t>(rows_at_once_)) {
        const Entry& entry = entries_[next_entry_++];
        places.push_back(entry.place);
        fetch.positions.push_back(entry.position);
    }
    const std::uint64_t id = fetch.id;
    fetches_.push_back(std::move(fetch));
    run(calls::rows(number_, segment, places, fetches_.back().positions, evaluation_),
        &WindowReader::take_rows, id);
}

void WindowReader::take_rows(Answer answer, std::uint64_t id) {
    const auto fetch = std::find_if(fetches_.begin(), fetches_.end(),
                                    [id](const Fetch& one) { return one.id == id; });
    if (fetch == fetches_.end())
        return;
    if (answer.sqlstate == calls::rewritten) {
        forget_places();
        fail(answer);
        return;
    }
    const bool usable = answer.ok && fetch->rows.start(std::move(answer.rows));
    if (!usable) {
        // Asked for again, and in smaller blocks.
        read_less_at_once(answer);
        next_entry_ = fetch->first_entry;
        fetches_.erase(fetch, fetches_.end());
        if (answer.ok)
            answer = malformed();
        fail(answer);
        return;
    }
    fetch->arrived = true;
    fetch->memory.set(fetch->rows.rows().memory());
    learn_size(fetch->rows);
    owner_.read_more();
}

void WindowReader::learn_size(const EventRows& rows) noexcept {
    if (rows.size() == 0)
        return;
    const std::size_t each = rows.bytes() / static_cast<std::size_t>(rows.size()) + 1;
    const auto fitting = static_cast<std::int32_t>(bytes_of_fetch() / each);
    rows_at_once_ = std::clamp(std::min(fitting, rows_at_once_ * 2), 1, max_rows_at_once);
}

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

bool WindowReader::is_wanted(std::int64_t position) const {
    return !std::binary_search(recorded_.begin(), recorded_.end(), position);
}

WindowReader::Filled WindowReader::fill(EventBlock& block) {
    for (; !fetches_.empty() && fetches_.front().arrived; fetches_.pop_front()) {
        Fetch& fetch = fetches_.front();
        for (; fetch.next_row < fetch.rows.size(); fetch.next_row++) {
            const auto position = fetch.rows.position(fetch.next_row);
            if (!position)
                return Filled::unreadable;
            if (!is_wanted(*position))
                continue;
            switch (fetch.rows.copy(fetch.next_row, block)) {
                case EventRows::Copied::yes:
                    break;
                case EventRows::Copied::block_is_full:
                    request_more();
                    return Filled::some;
                case EventRows::Copied::unreadable:
                    last_position_ = *position;
                    return Filled::unreadable;
            }
        }
    }
    request_more();
    if (in_window_ && fetches_.empty() && complete_ && next_entry_ == entries_.size()) {
        in_window_ = false;
        last_position_ = entries_to_;
        entries_ = {};
        entries_memory_.set(0);
        next_entry_ = 0;
        return Filled::end_of_window;
    }
    return block.empty() ? Filled::nothing_yet : Filled::some;
}

}  // namespace outbox::relay
