// Memory that runs out: of the allocations of this thread by operator new one fails.
#pragma once

namespace outbox {

// How many succeed before it does; -1: none fails.
extern thread_local long allocations_until_failure;

// Whether it did; from here on none does.
bool allocation_failed();

}  // namespace outbox
