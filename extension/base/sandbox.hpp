// Runs code of others so that it can only compute: expressions that users give as text, from their
// analysis on, because reading a literal may run a CHECK of a domain.
//
// The code runs with the rights of one role and no others, never those of a superuser, in a
// security-restricted operation, with names looked up in pg_catalog only. It may only read: it runs
// in parallel mode and read-only, in a subtransaction that is always rolled back. What it says reaches
// neither the server log nor the client. It ends after outbox.expression_timeout.
//
// What STABLE and PARALLEL SAFE promise is not relied on, because their functions may be replaced. What
// a read-only transaction in parallel mode does not refuse, its role would have to be allowed
// (COPY ... TO PROGRAM), or is given back: advisory locks of a session, where the session is a worker.
//
// The timeout has two stages. First it is a cancellation, as by pg_cancel_backend(). Code that does
// not look for one is left by force after `force_after` times the timeout: the signal handler raises
// the error itself, wherever the code is. That is safe only where no lock of the server is held, and
// may leave a library of the code (malloc, a language) in any state. The alternative is a process that
// only SIGKILL ends, which restarts the server. So a worker that has done this ends soon
// (left_by_force()).
#pragma once

#include "extension/base/pg.hpp"

namespace outbox {

// Owns no object, and nothing is granted to it but what everybody may do. No role has this OID: it
// stands for a superuser, whose rights code of others does not get.
constexpr Oid nobody = 1;

// Returns `role`, or nobody in place of a superuser.
Oid without_superuser(Oid role);

// A subtransaction for code of others. Errors jump over it: it has no destructor.
class Sandbox {
  public:
    bool is_open() const { return open_; }
    // After this the code runs between enter() and leave(), several times if need be. The caller has
    // its own memory and resources in between.
    void open(Oid role);
    void enter();
    void leave();
    // Ends the subtransaction, also after an error within it.
    void close();

    // True if the last error was the timeout.
    static bool timed_out();

  private:
    bool open_ = false;
    ResourceOwner resources_ = nullptr;      // of the caller
    ResourceOwner own_resources_ = nullptr;  // of the subtransaction
    int settings_ = 0;
};

// True if code in this process did not end, and was left by force.
bool left_by_force();

// What to say of code that took too long.
char* timeout_message();

// Runs `work` in a sandbox, and returns a copy of the node that it makes. Errors leave the sandbox
// first.
Node* make_in_sandbox(Oid role, Node* (*work)(void*), void* argument);

}  // namespace outbox
