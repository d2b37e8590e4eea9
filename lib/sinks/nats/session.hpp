// What the sink and the check have in common: the connection as the options say, and the inbox where
// answers arrive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "net/nats/nats_connection.hpp"
#include "sinks/nats/options.hpp"

namespace outbox {

// Returns an error if the credentials cannot be used.
Result<NatsConfig> nats_config(const NatsOptions& options);

// Subjects for the answers to requests, which are counted. Others cannot guess them.
class NatsInbox {
  public:
    explicit NatsInbox(const std::string& prefix);

    // The command that subscribes to all of them.
    std::string subscription() const;
    void append_reply(std::string& out, std::uint64_t request) const;
    // Returns the request that a message answers, or std::nullopt if it answers none.
    std::optional<std::uint64_t> request_of(const NatsInput& message) const noexcept;

  private:
    static constexpr std::uint64_t id = 1;
    std::string prefix_;  // with the dot
};

}  // namespace outbox
