// The key of a Google service account: https://google.aip.dev/auth/4112.
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
    // Parses the text of a key file. An error names the mistake without any of the text.
    static Result<ServiceAccount> parse(std::string_view json);

    // Signs a token that the service accepts directly, without a token server
    // (https://google.aip.dev/auth/4111): a JWT, RS256, for `scope` and `lifetime` seconds. Returns
    // std::nullopt if OpenSSL cannot sign.
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
