// Threads that libraries start inherit the signal mask of whoever starts them. A thread that
// handled a signal of the server would corrupt its state, and those of the program that the client
// is part of are for its own threads; so all signals are blocked around whatever may start one.
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
