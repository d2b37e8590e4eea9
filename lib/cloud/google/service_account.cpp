#include "cloud/google/service_account.hpp"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "core/base64.hpp"
#include "core/text.hpp"
#include "net/json.hpp"

namespace outbox {

// Base64 as in a JWT (RFC 7515, section 2).
static void append_base64url(std::string& out, std::string_view bytes) {
    const std::size_t start = out.size();
    append_base64(out, bytes);
    while (out.size() > start && out.back() == '=')
        out.pop_back();
    for (std::size_t i = start; i < out.size(); i++) {
        if (out[i] == '+')
            out[i] = '-';
        else if (out[i] == '/')
            out[i] = '_';
    }
}

Result<ServiceAccount> ServiceAccount::parse(std::string_view json) {
    const auto unusable = [](std::string why) {
        return Error{ErrorKind::unavailable, std::move(why)};
    };
    const std::optional<Json::Value> file = parse_json(json);
    if (!file || !file->isObject())
        return unusable("it is not a JSON object");
    // Other types must first be exchanged for a token elsewhere.
    if (const std::string type = json_text(*file, "type"); type != "service_account")
        return unusable(type.empty() ? "it does not say its type"
                                     : "its type is not service_account");
    ServiceAccount account;
    account.email_ = json_text(*file, "client_email");
    account.key_id_ = json_text(*file, "private_key_id");
    if (account.email_.empty())
        return unusable("it has no client_email");
    std::string pem = json_text(*file, "private_key");
    if (pem.empty())
        return unusable("it has no private_key");
    account.key_ = read_key(pem);
    OPENSSL_cleanse(pem.data(), pem.size());
    if (account.key_ == nullptr)
        return unusable("its private_key is not an RSA key in PEM");
    return account;
}

ServiceAccount::Key ServiceAccount::read_key(const std::string& pem) {
    const auto no_password = [](char*, int, int, void*) { return -1; };
    Key key;
    if (BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))) {
        key.reset(PEM_read_bio_PrivateKey(bio, nullptr, no_password, nullptr));
        BIO_free(bio);
    }
    ERR_clear_error();
    if (key != nullptr && EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_RSA)
        key.reset();
    return key;
}

static std::optional<std::string> sign_rs256(EVP_PKEY* key, std::string_view text) {
    std::string signature(static_cast<std::size_t>(EVP_PKEY_get_size(key)), '\0');
    std::size_t size = signature.size();
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    const bool done =
        context != nullptr &&
        EVP_DigestSignInit(context, nullptr, EVP_sha256(), nullptr, key) == 1 &&
        EVP_DigestSign(context, reinterpret_cast<unsigned char*>(signature.data()), &size,
                       reinterpret_cast<const unsigned char*>(text.data()), text.size()) == 1;
    EVP_MD_CTX_free(context);
    ERR_clear_error();
    if (!done)
        return std::nullopt;
    signature.resize(size);
    return signature;
}

std::optional<std::string> ServiceAccount::sign_token(std::string_view scope,
                                                      std::int64_t unix_seconds,
                                                      std::int64_t lifetime) const {
    std::string header = R"({"alg":"RS256","typ":"JWT")";
    if (!key_id_.empty()) {
        header += R"(,"kid":)";
        append_json_string(header, key_id_);
    }
    header += '}';

    std::string claims = R"({"iss":)";
    append_json_string(claims, email_);
    claims += R"(,"sub":)";
    append_json_string(claims, email_);
    claims += R"(,"scope":)";
    append_json_string(claims, scope);
    claims += R"(,"iat":)";
    append_integer(claims, unix_seconds);
    claims += R"(,"exp":)";
    append_integer(claims, unix_seconds + lifetime);
    claims += '}';

    std::string token;
    append_base64url(token, header);
    token += '.';
    append_base64url(token, claims);
    const std::optional<std::string> signature = sign_rs256(key_.get(), token);
    if (!signature)
        return std::nullopt;
    token += '.';
    append_base64url(token, *signature);
    return token;
}

}  // namespace outbox
