// The thread that has the source to itself: receives, gives back what failed, seeks.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "backoff.hpp"
#include "dispatcher.hpp"
#include "inbox/source.hpp"
#include "shared.hpp"

namespace inbox {

class Receiver {
  public:
    Receiver(Shared& shared, Source& source, Dispatcher& dispatcher);

    // Until the consumer stops. Throws SourceError for what no waiting mends.
    void run();

    // Has the source go to another time, when no worker has anything left of before. To be asked
    // again until it returns true: it is done.
    bool seek(Time to);

  private:
    void open();
    void turn();
    void give_back(const std::vector<Delivery>& deliveries);
    void seek_if_asked();

    Shared& shared_;
    Source& source_;
    Dispatcher& dispatcher_;
    Backoff pauses_;
    bool open_ = false;
    bool opened_before_ = false;
    std::mutex mutex_;
    std::optional<Time> to_seek_, sought_;
};

}  // namespace inbox
