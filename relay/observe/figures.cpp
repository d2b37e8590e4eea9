#include "relay/observe/figures.hpp"

#include <utility>

namespace outbox::relay {

void Figures::publish(ProcessFigures figures) {
    auto next = std::make_shared<const ProcessFigures>(std::move(figures));
    const std::lock_guard lock(mutex_);
    figures_.swap(next);  // the old ones are released after the lock
}

std::shared_ptr<const ProcessFigures> Figures::read() const {
    const std::lock_guard lock(mutex_);
    return figures_;
}

}  // namespace outbox::relay
