// Deliveries that were received and not settled: who may work at which, and in what order.
//
// Deliveries of an ordering key stand in one line, of which at most one worker has the front; those
// without a key are a line each. A line whose event has failed is held until it is given back to
// the source, with all that stands behind.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "inbox/event.hpp"

namespace inbox {

using Clock = std::chrono::steady_clock;

struct Line {
    std::string key;
    std::deque<Delivery> waiting;
    Clock::time_point held_until{};
};

enum class Outcome {
    open,       // not known yet, or never: the consumer stops
    applied,    // committed
    duplicate,  // was applied before
    dead,       // is in the dead letters
    failed,     // comes again
    behind,     // an earlier one of its key has failed: comes again after it
};
// The source need not deliver it again.
inline bool is_done(Outcome outcome) {
    return outcome == Outcome::applied || outcome == Outcome::duplicate || outcome == Outcome::dead;
}

struct Failure {
    std::string error, sqlstate;
    bool permanent = false;
};

struct Item {
    Delivery delivery;
    std::shared_ptr<Line> line;
    Outcome outcome = Outcome::open;
    Failure failure{};                   // if it failed
    bool owed = false;                   // its id is committed, though it was not handled
    bool reported = false;               // and the database knows
    std::chrono::milliseconds pause{0};  // before it is given back
};

class Dispatcher {
  public:
    Dispatcher(std::size_t max_messages, std::size_t max_bytes)
        : max_messages_(max_messages), max_bytes_(max_bytes) {}

    // For the thread that receives. How many more may come, waiting at most so long until it is
    // more than 0; full once, it is so again only below 80 %.
    std::size_t room(std::chrono::milliseconds wait);
    void add(std::vector<Delivery> deliveries);

    // For workers. The next ones, those of a key together and in their order; waits until there are
    // some. None: stop() was called.
    std::vector<Item> take(std::size_t max);
    // Ends what take() has begun; returns what is to be acknowledged.
    std::vector<Delivery> finish(std::vector<Item> items);

    // What was held long enough: to be given back.
    std::vector<Delivery> take_held(Clock::time_point now);
    // Everything, after waiting at most so long for workers to finish, which get nothing more
    // meanwhile. False: one has not finished by then, and nothing was taken.
    bool take_all(std::chrono::milliseconds wait, std::vector<Delivery>& all);

    void stop();

    std::size_t messages() const;
    std::size_t bytes() const;

  private:
    bool full();
    std::vector<Delivery> take_line(Line& line);

    const std::size_t max_messages_;
    const std::size_t max_bytes_;
    mutable std::mutex mutex_;
    std::condition_variable work_, finished_;
    std::unordered_map<std::string, std::shared_ptr<Line>> keys_;  // lines that have a key
    std::deque<std::shared_ptr<Line>> ready_;
    std::vector<std::shared_ptr<Line>> held_;
    std::size_t messages_ = 0;
    std::size_t bytes_ = 0;
    unsigned busy_ = 0;  // workers that have something
    bool full_ = false;
    bool paused_ = false;
    bool stopped_ = false;
};

}  // namespace inbox
