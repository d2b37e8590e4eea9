// Options for the connections of libcurl, whichever protocol they carry.
#pragma once

#include <curl/curl.h>

#include <optional>
#include <string>

#include "net/transport.hpp"

namespace outbox {

void set_connection_options(CURL* easy, const TransportConfig& config);

// The certificates of the option ca_file. libcurl gets the bytes and never the name of the file: it
// would read any file, and wait if it is a pipe.
class Authorities {
  public:
    explicit Authorities(const TransportConfig& config) : config_(config) {}

    // Sets the certificates for a transfer that is about to start. Reads the file again every ten
    // seconds, because it may have been replaced. Returns std::nullopt, or the reason why it cannot
    // be read. May throw std::bad_alloc.
    std::optional<std::string> trust(CURL* easy);

  private:
    std::optional<std::string> read();

    const TransportConfig& config_;
    std::string text_;
    Micros read_again_at_ = 0;
};

}  // namespace outbox
