// The identity that a Google destination presents: a bearer token from
//
//   1. the user mapping: `token`, `key` or `key_file`
//   2. GOOGLE_APPLICATION_CREDENTIALS of the server's environment
//   3. the metadata server of the machine (GCE_METADATA_HOST, or metadata.google.internal)
//
// The last two belong to the server process. Only superusers may let a destination use them.
#pragma once

#include <memory>
#include <string>

#include "cloud/google/google_options.hpp"
#include "core/clock.hpp"
#include "net/credentials.hpp"

namespace outbox {

class GoogleCredentials : public Credentials {
  public:
    // The value of the header Authorization, while the state is `ready`.
    const std::string& authorization() const noexcept { return authorization_; }
    const std::string& error() const noexcept final { return error_; }

  protected:
    std::string authorization_;
    std::string error_;
};

// May throw std::bad_alloc.
std::unique_ptr<GoogleCredentials> google_credentials(const GoogleOptions& options,
                                                      const Clock& clock);

}  // namespace outbox
