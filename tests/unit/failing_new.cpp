// This is a separate file, so that no caller can see that new is malloc() and delete is free().
#include "failing_new.hpp"

#include <cstdlib>
#include <new>
#include <utility>

namespace outbox {

thread_local long allocations_until_failure = -1;

bool allocation_failed() {
    return std::exchange(allocations_until_failure, -1) < 0;
}

}  // namespace outbox

void* operator new(std::size_t size) {
    using outbox::allocations_until_failure;
    if (allocations_until_failure >= 0 && allocations_until_failure-- == 0)
        throw std::bad_alloc();
    if (void* memory = std::malloc(size > 0 ? size : 1))
        return memory;
    throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
    std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
