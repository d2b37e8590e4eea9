// Deliveries that were received and not settled: which worker may take which, and in what order.
//
// Deliveries of one ordering key form a line; each delivery without a key is a line of its own. A
// line is always in exactly one place:
//
//   ready_   some deliveries wait, and any worker may take them
//   taken    one worker has its front; add() appends behind it, and no other worker takes from it;
//            it is in keys_ only
//   held_    one of its events failed; after a pause the receiving thread gives all of it back to
//            the source
//
// finish() moves a taken line to ready_, or to held_, or removes it if it is empty. So at most one
// worker has events of a key, and a failed event keeps the later ones of its key behind it.
//
// Threads: one thread receives (room, add, take_held, take_all), several apply (take, finish), and
// any thread may call the rest. All state is under mutex_, which is never held during I/O. work_ is
// notified when a line becomes ready, finished_ when a worker finishes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
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
    std::list<Delivery> waiting;  // a line is short as a rule, and an empty list allocates nothing
    Clock::time_point held_until{};
};

enum class HandlerResult {
    open,       // not known yet, or the consumer stopped before it was
    applied,    // committed
    duplicate,  // was applied before
    dead,       // became a dead letter
    failed,     // will come again
    behind,     // an earlier event of its key failed, and it will come again after that one
};
// True if the source need not deliver the event again.
inline bool is_done(HandlerResult result) {
    return result == HandlerResult::applied || result == HandlerResult::duplicate ||
           result == HandlerResult::dead;
}

struct Failure {
    std::string error, sqlstate;
    bool permanent = false;
    std::string detail{}, hint{}, context{};  // of an error of the server; empty if there is none
};

struct Item {
    Delivery delivery;
    std::shared_ptr<Line> line;
    HandlerResult result = HandlerResult::open;
    Failure failure{};                   // only if it failed
    bool owed = false;                   // its id is committed although it was not handled
    bool reported = false;               // the failure is in the database
    unsigned losses = 0;                 // connections lost in a row while it was applied alone
    std::chrono::milliseconds pause{0};  // pause before it is given back
};

class Dispatcher {
  public:
    Dispatcher(std::size_t max_messages, std::size_t max_bytes)
        : max_messages_(max_messages), max_bytes_(max_bytes) {
        // Lines come and go with each event, and each step in a chain is memory of another thread.
        keys_.max_load_factor(0.25);
    }

    // For the receiving thread. Returns the number of deliveries that may be added; waits for at
    // most `wait` until it is more than 0. Once full, there is no room before usage falls below 80
    // %.
    std::size_t room(std::chrono::milliseconds wait);
    void add(std::vector<Delivery> deliveries);

    // For workers. Waits for deliveries and returns them, those of a key together and in order.
    // Returns none after stop().
    std::vector<Item> take(std::size_t max);
    // Ends the work on items of take(). Returns the deliveries to acknowledge.
    std::vector<Delivery> finish(std::vector<Item> items);

    // Returns the deliveries whose pause is over. They must be given back to the source.
    std::vector<Delivery> take_held(Clock::time_point now);
    // Returns the deliveries that no worker has and that this is true for. They must be given back
    // to the source.
    std::vector<Delivery> take_waiting(const std::function<bool(const Delivery&)>& which);
    // Takes all deliveries. Waits for at most `wait` until all workers have finished; meanwhile
    // take() returns nothing. Returns false, and takes nothing, if a worker has not finished by
    // then.
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
    std::unordered_map<std::string, std::shared_ptr<Line>> keys_;  // lines with a key
    std::deque<std::shared_ptr<Line>> ready_;
    std::vector<std::shared_ptr<Line>> held_;
    std::size_t messages_ = 0;
    std::size_t bytes_ = 0;
    unsigned busy_ = 0;  // workers that have items
    bool full_ = false;
    bool paused_ = false;
    bool stopped_ = false;
};

}  // namespace inbox
