// How libcurl connects, whatever goes over the connection.
#pragma once

#include <curl/curl.h>

#include <optional>
#include <string>

#include "net/transport.hpp"

namespace outbox {

void set_connection_options(CURL* easy, const TransportConfig& config);

// The certificates of the file a destination names. libcurl gets their bytes and never the name:
// it would read whatever that is, and wait for it if it is a pipe.
class Authorities {
  public:
    explicit Authorities(const TransportConfig& config) : config_(config) {}

    // For a transfer that is about to start. The file may have been replaced, and is read again now
    // and then. std::nullopt, or why it cannot be read. May throw std::bad_alloc.
    std::optional<std::string> trust(CURL* easy);

  private:
    std::optional<std::string> read();

    const TransportConfig& config_;
    std::string text_;
    Micros read_again_at_ = 0;
};

}  // namespace outbox
