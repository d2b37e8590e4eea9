// Reads the windows of one destination by SQL, ahead of its relay.
//
// A look finds the window since a snapshot. If it is small, its events come with the answer.
// Otherwise the reader learns where its events are, a large number at a time, and fetches their
// rows in blocks: while the relay works on one block, the next ones are under way.
//
// A statement that fails is run again when the relay asks for more.
//
// Its memory counts towards the budget that the destinations of the process share. With little
// left, it reads less ahead.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/pipeline/memory_budget.hpp"
#include "relay/database/session_pool.hpp"
#include "relay/serve/calls.hpp"

namespace outbox::relay {

class WindowReader {
  public:
    struct Owner {
        // look_result() or fill() may have something.
        virtual void read_more() = 0;
        virtual void reading_failed(const Answer& answer) = 0;
        // Nothing may be read now: the destination waits for events that another node delivers.
        virtual void reading_held() = 0;

      protected:
        ~Owner() = default;
    };
    // Places of this many events are asked for at a time: 8 MB. Half as many again may be known.
    static constexpr std::int32_t max_entries = 500'000;

    WindowReader(Owner& owner, SessionPool& sessions, MemoryBudget& budget)
        : owner_(owner), sessions_(sessions), budget_(budget), entries_memory_(&budget) {}

    // Starts over for a destination. Events at the positions in `recorded` (ascending), which are
    // in outbox.delivery, are left out.
    void start(std::int32_t number, std::vector<std::string> patterns,
               const calls::Evaluation& evaluation);
    void leave_out(std::vector<std::int64_t> recorded) { recorded_ = std::move(recorded); }
    // Forgets everything. Answers to statements under way will be ignored.
    void reset() noexcept;
    // Statements without an answer. The reader must outlive them.
    std::size_t under_way() const noexcept { return under_way_; }

    void look(const calls::Range& range);
    // The result of look(), once. If it has events, fill() returns them.
    std::optional<calls::Found> look_result();

    enum class Filled {
        nothing_yet,  // read_more() will be called
        some,
        end_of_window,
        unreadable,  // the event at last_position() lacks a value
    };
    // Appends the next events of the window to the block. Without a window there is nothing yet.
    Filled fill(EventBlock& block);
    // Position of the last event that was read, whatever destination it is for.
    std::int64_t last_position() const noexcept { return last_position_; }

  private:
    struct Entry {
        std::int64_t position;
        Place place;
        std::uint16_t segment;
    };
    // Rows that were asked for.
    struct Fetch {
        std::uint64_t id = 0;
        std::size_t first_entry = 0;
        std::vector<std::int64_t> positions{};  // of the entries
        bool arrived = false;
        EventRows rows{};
        int next_row = 0;
        MemoryCharge memory{};
    };

    void run(Call call, void (WindowReader::*done)(Answer, std::uint64_t), std::uint64_t id = 0);
    void take_look(Answer answer, std::uint64_t);
    void take_entries(Answer answer, std::uint64_t);
    void take_rows(Answer answer, std::uint64_t id);
    std::size_t fetches_allowed() const noexcept;
    std::size_t bytes_of_fetch() const noexcept;
    std::int32_t entries_wanted() const noexcept;
    void request_more();
    void request_rows();
    void forget_entries();
    void forget_places();
    void fail(const Answer& answer);
    void read_less_at_once(const Answer& answer) noexcept;
    bool is_wanted(std::int64_t position) const;
    void learn_size(const EventRows& rows) noexcept;

    Owner& owner_;
    SessionPool& sessions_;
    MemoryBudget& budget_;
    std::int32_t number_ = 0;
    std::vector<std::string> patterns_;
    calls::Evaluation evaluation_;
    std::vector<std::int64_t> recorded_;

    std::uint64_t generation_ = 0;  // changes when answers under way become useless
    std::size_t under_way_ = 0;
    std::uint64_t fetches_made_ = 0;
    std::int32_t rows_at_once_ = 256;

    // The window.
    bool in_window_ = false;
    calls::Range range_;
    Snapshot end_;
    std::optional<calls::Found> found_;
    std::vector<Entry> entries_;
    MemoryCharge entries_memory_;
    std::size_t next_entry_ = 0;
    std::int64_t entries_to_ = 0;  // position up to which the places are known
    bool complete_ = true;         // there are no further ones
    bool asked_for_entries_ = false;
    std::int32_t entries_at_once_ = 0;
    std::deque<Fetch> fetches_;
    std::int64_t last_position_ = 0;
};

}  // namespace outbox::relay
