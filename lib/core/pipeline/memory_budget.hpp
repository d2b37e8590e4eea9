// Memory for events that the pipelines of one process share.
//
// A pipeline may take more while it holds less than what nobody has taken. So one alone may have
// half of the budget, and n that want more have 1/(n+1) each: a part always stays free for those
// that are idle now. Without that, destinations that are down would keep all of it, because they
// give nothing back.
//
// Each may have a little in any case, so that it goes on even when nothing is left.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

namespace outbox {

class MemoryBudget {
  public:
    // Room for a block of events, while another one is read.
    static constexpr std::size_t always = 512 * 1024;

    explicit MemoryBudget(std::size_t bytes) noexcept : bytes_(bytes) {}
    MemoryBudget(const MemoryBudget&) = delete;
    MemoryBudget& operator=(const MemoryBudget&) = delete;

    // One that holds less than this may take more.
    std::size_t share() const noexcept {
        return std::max(always, bytes_ - std::min(bytes_, taken_));
    }
    // May be more than the budget by what each may have in any case.
    std::size_t taken() const noexcept { return taken_; }

  private:
    friend class MemoryCharge;

    std::size_t bytes_;
    std::size_t taken_ = 0;
};

// The part that one owner has taken.
class MemoryCharge {
  public:
    explicit MemoryCharge(MemoryBudget* budget = nullptr) noexcept : budget_(budget) {}
    MemoryCharge(MemoryCharge&& other) noexcept
        : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
    MemoryCharge& operator=(MemoryCharge&& other) noexcept {
        std::swap(budget_, other.budget_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~MemoryCharge() { set(0); }

    void set(std::size_t bytes) noexcept {
        if (budget_ != nullptr)
            budget_->taken_ += bytes - bytes_;
        bytes_ = bytes;
    }

  private:
    MemoryBudget* budget_;
    std::size_t bytes_ = 0;
};

}  // namespace outbox
