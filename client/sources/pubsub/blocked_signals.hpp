// Signals are the program's own, to be handled on its own threads: while all are blocked, threads
// that are started, here or in gRPC, inherit that.
#pragma once

#include <csignal>

namespace inbox::pubsub {

class BlockedSignals {
  public:
    BlockedSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;

  private:
    sigset_t before_;
};

}  // namespace inbox::pubsub
