// The time for which a process may serve its destinations.
//
// The database counts a lease from the moment it runs the renewal, the process from the moment
// before it asks for it, which is earlier. It also stops a margin before the end: nothing is
// submitted once another process may have taken over. The clock counts while the machine is
// suspended.
#pragma once

#include <algorithm>

#include "core/clock.hpp"

namespace outbox::relay {

// CLOCK_BOOTTIME
Micros boot_time() noexcept;

class Lease {
  public:
    explicit Lease(Micros length) noexcept : length_(length) {}

    Micros length() const noexcept { return length_; }
    Micros margin() const noexcept { return std::min(length_ / 5, seconds(2)); }

    // The renewal for which the process asked at this time has succeeded.
    void renewed(Micros asked_at) noexcept { asked_at_ = std::max(asked_at_, asked_at); }
    void lose() noexcept { asked_at_ = none; }

    bool holds(Micros now) const noexcept { return now < ends_at(); }
    // When the process stops, by boot_time().
    Micros ends_at() const noexcept {
        return asked_at_ == none ? 0 : asked_at_ + length_ - margin();
    }
    // When it is to be renewed.
    Micros renew_at() const noexcept { return asked_at_ == none ? 0 : asked_at_ + length_ / 3; }
    // Longest wait for the answer to a renewal. If the lease belongs to the session, that ends with
    // it, so the answer may take as long as the lease. Otherwise there is time for a second one.
    Micros renewal_time_limit(Micros now, bool of_session) const noexcept {
        return of_session ? std::max(length_ / 4, ends_at() - now) : length_ / 4;
    }

  private:
    static constexpr Micros none = -1;

    Micros length_;
    Micros asked_at_ = none;
};

}  // namespace outbox::relay
