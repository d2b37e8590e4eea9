// Signatures of requests (https://www.standardwebhooks.com). With the secret or the public key, a
// receiver can verify the sender of a request, its content, and when it was sent.
//
//   webhook-id         the same whenever the same events are sent again
//   webhook-timestamp  of this attempt, in seconds
//   webhook-signature  one or more of "v1,<base64>" (HMAC-SHA256) and "v1a,<base64>" (Ed25519), of
//                      "<id>.<timestamp>.<body>"
#pragma once

#include <openssl/evp.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/event.hpp"
#include "core/result.hpp"

namespace outbox {

// No header of an event, and none of the user mapping, may have these names in a signed request.
inline constexpr std::array<std::string_view, 3> signature_headers{
    "webhook-id", "webhook-timestamp", "webhook-signature"};

// The id of a request: that of its event, or one made from those of all its events.
void append_webhook_id(std::string& out, std::span<Event* const> events);

// Not thread-safe. Its functions may throw std::bad_alloc.
class WebhookSigner {
  public:
    // Takes secrets and keys in their text form, "whsec_..." and "whsk_...", which the options have
    // checked. Empty ones are left out. Fails if OpenSSL does not take one of them.
    static Result<WebhookSigner> create(std::span<const std::string> secrets,
                                        std::span<const std::string> keys);

    // False if there is nothing to sign with.
    explicit operator bool() const noexcept { return !secrets_.empty() || !keys_.empty(); }

    // Returns for example "2 signatures v1 and 1 signature v1a".
    std::string describe() const;

    // Appends the three headers, as lines.
    void append_headers(std::string& out, std::string_view id, Micros unix_now,
                        std::string_view body);

  private:
    struct Free {
        void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
        void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
        void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
    };
    using Mac = std::unique_ptr<EVP_MAC_CTX, Free>;
    using Key = std::unique_ptr<EVP_PKEY, Free>;

    std::optional<Error> add_secret(std::string_view secret);
    std::optional<Error> add_key(std::string_view key);
    static void append_mac(std::string& out, const Mac& secret, std::string_view head,
                           std::string_view body);
    static void append_signature(std::string& out, const Key& key, std::string_view text);

    std::vector<Mac> secrets_;  // each is set up with its secret, and copied for each request
    std::vector<Key> keys_;
    std::string text_;  // scratch space
};

}  // namespace outbox
