// Citus: transactions with an event on this node and rows on another.
#pragma once

namespace outbox::citus {

// Looks for Citus, which is preloaded before this library.
void find();

// Makes Citus commit the rows on other nodes in two phases, if there are any. To be called before
// Citus hears of the commit. Does nothing without Citus.
void commit_in_two_phases() noexcept;

}  // namespace outbox::citus
