// One PQconnectPoll(), in a thread of its own.
//
// It does not wait for the network, but a server decides how long it computes: SCRAM has a number of
// rounds that libpq does not limit, up to an hour of them. Meanwhile the relay must hear that it
// should end.
#pragma once

#include <libpq-fe.h>

#include <memory>

namespace outbox {

class LoginStep {
  public:
    // Until the step has ended nobody else may use the connection.
    explicit LoginStep(PGconn* connection);
    LoginStep(const LoginStep&) = delete;
    LoginStep& operator=(const LoginStep&) = delete;

    // Readable when the step has ended; -1: it could not be started.
    int descriptor() const noexcept;
    PostgresPollingStatusType status() const noexcept;  // of one that has ended
    // Before it is destroyed, unless it has ended. True: it still runs, and the connection is the
    // thread's, which frees it in the end.
    bool give_up() noexcept;

    // Does one run that was given up? There must not be a second one.
    static bool one_is_left_over() noexcept;
    // Before the first step: a process that exits while one runs frees nothing that it uses.
    static void prepare_process();

  private:
    struct Shared;
    std::shared_ptr<Shared> shared_;  // the thread may outlive us
};

}  // namespace outbox
