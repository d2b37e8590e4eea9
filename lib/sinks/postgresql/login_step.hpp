// One call of PQconnectPoll(), in a thread of its own.
//
// It does not wait for the network, but the server decides how long it computes: libpq does not
// limit the number of rounds of SCRAM, which can take up to an hour. Meanwhile the relay must
// notice when it should end.
//
// Protocol. While the step runs, only its thread uses the connection. At the end the thread stores
// `status`, changes `state` to has_ended, and then signals the descriptor. When the descriptor is
// readable the owner reads `status`, and the connection is the owner's again. An owner that cannot
// wait calls give_up(), which changes `state` to is_given_up. Both changes are exchanges, so
// exactly one of the two comes second, and that one gets the connection: the thread frees it, or
// give_up() returns false and the owner keeps it. give_up() increments `left_over` before the
// exchange, so that the decrement of the thread cannot come first. `running` counts all steps: a
// process that exits while one runs skips the exit handlers, which would free memory that the
// thread uses.
#pragma once

#include <libpq-fe.h>

#include <memory>

namespace outbox {

class LoginStep {
  public:
    // Starts the step. Until it has ended, the connection must not be used elsewhere.
    explicit LoginStep(PGconn* connection);
    LoginStep(const LoginStep&) = delete;
    LoginStep& operator=(const LoginStep&) = delete;

    // Readable once the step has ended; -1 if it could not be started.
    int descriptor() const noexcept;
    PostgresPollingStatusType status() const noexcept;  // valid once the step has ended
    // Must be called before destruction unless the step has ended. Returns true if it still runs:
    // the connection then belongs to the thread, which frees it at the end.
    bool give_up() noexcept;

    // True while a step that was given up still runs. Another step must not be started then.
    static bool one_is_left_over() noexcept;
    // Call this before the first step. It makes an exit of the process safe while a step runs.
    static void prepare_process();

  private:
    struct Shared;
    std::shared_ptr<Shared> shared_;  // the thread may outlive this object
};

}  // namespace outbox
