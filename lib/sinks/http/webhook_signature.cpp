#include "sinks/http/webhook_signature.hpp"

#include <openssl/core_names.h>
#include <openssl/params.h>

#include <new>

#include "core/base64.hpp"
#include "core/text.hpp"
#include "net/sha256.hpp"
#include "sinks/http/webhook_secret.hpp"

namespace outbox {

static constexpr std::size_t digest_size = 32;     // of SHA-256
static constexpr std::size_t signature_size = 64;  // of Ed25519

// OpenSSL was given keys that it has accepted before: only memory can be missing.
static void check(bool succeeded) {
    if (!succeeded)
        throw std::bad_alloc();
}

// -------------------------------------------------------------------------------------------------
// Ids
// -------------------------------------------------------------------------------------------------

// A batch that is sent again has the same events in the same order, or it is another batch.
void append_webhook_id(std::string& out, std::span<Event* const> events) {
    if (events.size() == 1) {
        append_uuid(out, events.front()->event_id);
        return;
    }
    static constexpr std::size_t kept_digits = 32;  // as many as an event id has
    std::string ids;
    for (const Event* event : events)
        ids.append(reinterpret_cast<const char*>(event->event_id.data()), event->event_id.size());
    out += "batch_";
    out += std::string_view(sha256_hex(ids)).substr(0, kept_digits);
}

// -------------------------------------------------------------------------------------------------
// Keys
// -------------------------------------------------------------------------------------------------

static Error unusable(const std::string& what) {
    return {ErrorKind::invalid_value, what, "", ""};
}

std::optional<Error> WebhookSigner::add_secret(std::string_view secret) {
    const std::optional<std::string> bytes = webhook_secret_bytes(secret);
    if (!bytes)
        return unusable("the signing secret is not \"whsec_\" and base64");
    EVP_MAC* const hmac = EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_HMAC, nullptr);
    Mac context(EVP_MAC_CTX_new(hmac));
    EVP_MAC_free(hmac);  // the context keeps it
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end()};
    if (context == nullptr ||
        EVP_MAC_init(context.get(), reinterpret_cast<const unsigned char*>(bytes->data()),
                     bytes->size(), parameters) != 1)
        return unusable("OpenSSL of this server does not sign with HMAC-SHA256");
    secrets_.push_back(std::move(context));
    return std::nullopt;
}

std::optional<Error> WebhookSigner::add_key(std::string_view text) {
    const std::optional<std::string> bytes = webhook_key_bytes(text);
    if (!bytes)
        return unusable("the signing key is not \"whsk_\" and base64");
    Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr,
                                         reinterpret_cast<const unsigned char*>(bytes->data()),
                                         webhook_seed_size));
    if (key == nullptr)
        return unusable("OpenSSL of this server does not sign with Ed25519");
    std::array<unsigned char, webhook_seed_size> public_key;
    std::size_t size = public_key.size();
    check(EVP_PKEY_get_raw_public_key(key.get(), public_key.data(), &size) == 1);
    const std::string_view given = std::string_view(*bytes).substr(webhook_seed_size);
    if (!given.empty() &&
        given != std::string_view(reinterpret_cast<const char*>(public_key.data()), size))
        return unusable("the two halves of the signing key do not belong together");
    keys_.push_back(std::move(key));
    return std::nullopt;
}

Result<WebhookSigner> WebhookSigner::create(std::span<const std::string> secrets,
                                            std::span<const std::string> keys) {
    WebhookSigner signer;
    for (const std::string& secret : secrets)
        if (!secret.empty())
            if (std::optional<Error> error = signer.add_secret(secret))
                return *error;
    for (const std::string& key : keys)
        if (!key.empty())
            if (std::optional<Error> error = signer.add_key(key))
                return *error;
    return signer;
}

static std::string counted(std::size_t count, const char* version) {
    return std::to_string(count) + (count == 1 ? " signature " : " signatures ") + version;
}

std::string WebhookSigner::describe() const {
    if (keys_.empty())
        return counted(secrets_.size(), "v1");
    const std::string asymmetric = counted(keys_.size(), "v1a");
    return secrets_.empty() ? asymmetric : counted(secrets_.size(), "v1") + " and " + asymmetric;
}

// -------------------------------------------------------------------------------------------------
// Signing
// -------------------------------------------------------------------------------------------------

static std::string_view as_text(std::span<const unsigned char> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

static const unsigned char* as_bytes(std::string_view text) {
    return reinterpret_cast<const unsigned char*>(text.data());
}

void WebhookSigner::append_mac(std::string& out, const Mac& secret, std::string_view head,
                               std::string_view body) {
    const Mac context(EVP_MAC_CTX_dup(secret.get()));
    std::array<unsigned char, digest_size> digest;
    std::size_t size = 0;
    check(context != nullptr && EVP_MAC_update(context.get(), as_bytes(head), head.size()) == 1 &&
          EVP_MAC_update(context.get(), as_bytes(body), body.size()) == 1 &&
          EVP_MAC_final(context.get(), digest.data(), &size, digest.size()) == 1);
    out += "v1,";
    append_base64(out, as_text({digest.data(), size}));
}

// Ed25519 reads the text twice, so it takes it as a whole only.
void WebhookSigner::append_signature(std::string& out, const Key& key, std::string_view text) {
    const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
    std::array<unsigned char, signature_size> signature;
    std::size_t size = signature.size();
    check(context != nullptr &&
          EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
          EVP_DigestSign(context.get(), signature.data(), &size, as_bytes(text), text.size()) == 1);
    out += "v1a,";
    append_base64(out, as_text({signature.data(), size}));
}

void WebhookSigner::append_headers(std::string& out, std::string_view id, Micros unix_now,
                                   std::string_view body) {
    text_ = id;
    text_ += '.';
    const std::size_t before_time = text_.size();
    append_integer(text_, unix_now / seconds(1));
    out += "webhook-id: ";
    out += id;
    out += "\r\nwebhook-timestamp: ";
    out += std::string_view(text_).substr(before_time);
    out += "\r\nwebhook-signature:";
    text_ += '.';
    for (const Mac& secret : secrets_)
        append_mac(out += ' ', secret, text_, body);
    if (!keys_.empty())
        text_ += body;
    for (const Key& key : keys_)
        append_signature(out += ' ', key, text_);
    out += "\r\n";
}

}  // namespace outbox
