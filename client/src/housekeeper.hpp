// The periodic work of a consumer: carries out resets of its offset, saves positions, reports gaps
// and figures, prunes the deduplication window, and applies messages that operators have redriven.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "connection.hpp"
#include "event_row.hpp"
#include "receiver.hpp"
#include "shared.hpp"

namespace inbox {

class Housekeeper {
  public:
    Housekeeper(Shared& shared, Receiver& receiver, Source& source)
        : shared_(shared), receiver_(receiver), source_(source) {}

    // Does one round. Failures are logged, and tried again in the next round.
    void turn();
    // Saves positions and figures when no handler runs any more.
    void finish() noexcept;
    // True if the next round should not wait for the interval.
    bool in_a_hurry() const { return resetting_; }

  private:
    template <typename Task>
    void attempt(const char* what, Task task);
    void look_for_reset();
    bool has_unsaved();
    void save_positions();
    bool has_unreported();
    void report_gaps();
    void report(std::size_t outstanding);
    void prune();
    void take_redriven();
    void try_redriven(const std::string& token, const Event& event);

    Shared& shared_;
    Receiver& receiver_;
    Source& source_;
    std::vector<Position> unsaved_;
    std::deque<Gap> unreported_;
    std::optional<Connection> connection_;
    bool resetting_ = false;
    std::set<std::string> failing_;  // names of failing tasks, so that each is logged once
};

// Saves positions at once. Throws DatabaseError.
void save_positions(const Shared& shared, const std::vector<Position>& positions);

// Implements LoadPositions.
std::vector<Position> load_positions(const Shared& shared,
                                     const std::vector<std::string>& subscriptions);

}  // namespace inbox
