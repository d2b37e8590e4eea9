// The thread that calls the source: receives, gives back deliveries that failed, seeks.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "backoff.hpp"
#include "dispatcher.hpp"
#include "inbox/source.hpp"
#include "shared.hpp"

namespace inbox {

class Receiver {
  public:
    Receiver(Shared& shared, Source& source, Dispatcher& dispatcher);

    // Runs until the consumer stops. Throws SourceError if waiting cannot help.
    void run();

    // Ends an open() of the source that waits. Called after `stop` was raised.
    void stop() noexcept;

    // Asks the source to move to another time, once no worker has deliveries from before. Call it
    // again until it returns true: the move is done.
    bool seek(Time to);

    // Returns the number of deliveries that were received and not settled.
    std::size_t outstanding() const { return dispatcher_.messages(); }

  private:
    void open();
    void turn();
    void give_back(const std::vector<Delivery>& deliveries);
    void seek_if_asked();

    Shared& shared_;
    Source& source_;
    Dispatcher& dispatcher_;
    Backoff pauses_;
    std::atomic<bool> opening_{false};
    bool open_ = false;
    bool opened_before_ = false;
    std::vector<Position> begin_;  // where the source begins, not saved yet
    std::mutex mutex_;
    std::optional<Time> to_seek_, sought_;
};

}  // namespace inbox
