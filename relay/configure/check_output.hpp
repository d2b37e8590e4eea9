// Lines of outbox-relay --check.
#pragma once

#include <string>
#include <string_view>

#include "core/check.hpp"
#include "core/result.hpp"
#include "relay/configure/config.hpp"

namespace outbox::relay {

// "message: detail (hint)"
std::string in_one_line(const Error& error);

class CheckOutput {
  public:
    explicit CheckOutput(LogFormat format) noexcept : format_(format) {}

    // Texts are made printable here. Secrets must be concealed before.
    void add(std::string_view database, std::string_view destination, const Finding& finding);
    bool all_ok() const noexcept { return all_ok_; }

  private:
    LogFormat format_;
    bool all_ok_ = true;
};

}  // namespace outbox::relay
