// Subjects for the answers to requests, which are counted. Others cannot guess them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "net/nats/nats_parser.hpp"

namespace outbox {

class NatsInbox {
  public:
    // May throw std::bad_alloc.
    explicit NatsInbox(const std::string& prefix);

    // The command that subscribes to all of them.
    std::string subscription() const;
    // The command that ends that.
    static std::string end();
    void append_reply(std::string& out, std::uint64_t request) const;
    // Returns the request that a message answers, or std::nullopt if it answers none.
    std::optional<std::uint64_t> request_of(const NatsInput& message) const noexcept;

  private:
    static constexpr std::uint64_t id = 1;
    std::string prefix_;  // with the dot
};

}  // namespace outbox
