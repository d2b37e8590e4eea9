// Options for the connections of libcurl, whichever protocol they carry.
#pragma once

#include <curl/curl.h>

#include <optional>
#include <string>

#include "net/transport.hpp"

namespace outbox {

// Sets the URL too, if the configuration has one.
void set_connection_options(CURL* easy, const TransportConfig& config);

// The client's own certificate, and those of the option ca_file, which are trusted. libcurl gets the
// bytes and never the name of the file: it would read any file, and wait if it is a pipe.
class Certificates {
  public:
    // The configuration must outlive the transfers.
    explicit Certificates(const TransportConfig& config) : config_(config) {}

    // Sets the certificates for a transfer that is about to start. Reads the file again every ten
    // seconds, because it may have been replaced. Returns std::nullopt, or the reason why they cannot
    // be used. May throw std::bad_alloc.
    std::optional<std::string> set(CURL* easy);

  private:
    std::optional<std::string> read();

    const TransportConfig& config_;
    std::string text_;
    Micros read_again_at_ = 0;
};

}  // namespace outbox
