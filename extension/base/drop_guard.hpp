// Keeps a statement from dropping pg_outbox together with events that are not delivered.
#pragma once

struct Node;

namespace outbox {

// Events that are lost with the extension. The texts are nullptr if there are none.
struct Undelivered {
    char* events = nullptr;
    char* by_destination = nullptr;
};

// Called before a utility statement. Counts the events if the statement is going to drop the
// extension, and raises an error if there are any, unless outbox.allow_drop_with_undelivered is on.
Undelivered check_drop(const Node* statement);

// Called after the statement. Warns of the events that are lost.
void warn_of_drop(const Undelivered& lost);

}  // namespace outbox
