// Blocks all signals around calls that may start a thread. A thread that a library starts inherits
// the signal mask of its creator. If it handled a signal of the server it would corrupt the
// server's state; in a client's program, signals are for the program's own threads.
#pragma once

#include <csignal>

namespace outbox {

class SignalsBlocked {
  public:
    SignalsBlocked() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t before_;
};

}  // namespace outbox
