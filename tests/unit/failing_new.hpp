// Simulates that memory runs out: one allocation of this thread by operator new fails.
#pragma once

namespace outbox {

// Number of allocations that succeed before one fails; -1 if none fails.
extern thread_local long allocations_until_failure;

// Returns whether an allocation has failed. After the call none fails.
bool allocation_failed();

}  // namespace outbox
