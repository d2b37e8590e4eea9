// The key of a service account of Google's: https://google.aip.dev/auth/4112.
#pragma once

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.hpp"

namespace outbox {

class ServiceAccount {
  public:
    // From the text of a key file. What is wrong with it the error says, without any of the text.
    static Result<ServiceAccount> parse(std::string_view json);

    // A token that the service takes as it is, without a server that would exchange it
    // (https://google.aip.dev/auth/4111): a JWT, RS256, for `scope` and `lifetime` seconds.
    // Nothing: OpenSSL would not sign.
    std::optional<std::string> sign_token(std::string_view scope, std::int64_t unix_seconds,
                                          std::int64_t lifetime) const;

  private:
    struct FreeKey {
        void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
    };
    using Key = std::unique_ptr<EVP_PKEY, FreeKey>;

    static Key read_key(const std::string& pem);

    std::string email_;
    std::string key_id_;
    Key key_;
};

}  // namespace outbox
