#include "sinks/http/endpoint_secret.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <new>

#include "core/base64.hpp"
#include "core/text.hpp"
#include "sinks/http/webhook_secret.hpp"

namespace outbox {

std::string endpoint_secret(std::string_view master_secret, std::string_view name) {
    const std::optional<std::string> key = webhook_secret_bytes(master_secret);
    if (!key)
        return "";
    std::array<unsigned char, 32> digest;
    unsigned size = 0;
    if (HMAC(EVP_sha256(), key->data(), static_cast<int>(key->size()),
             reinterpret_cast<const unsigned char*>(name.data()), name.size(), digest.data(),
             &size) == nullptr)
        throw std::bad_alloc();
    std::string secret(webhook_secret_mark);
    append_base64(secret, {reinterpret_cast<const char*>(digest.data()), size});
    return secret;
}

std::vector<std::string> endpoint_secrets(std::span<const std::string> master_secrets,
                                          std::string_view names) {
    std::vector<std::string> secrets;
    while (true) {
        const std::size_t comma = names.find(',');
        const std::string_view name = trim(names.substr(0, comma));
        for (const std::string& master : master_secrets)
            if (!name.empty() && !master.empty())
                secrets.push_back(endpoint_secret(master, name));
        if (comma == std::string_view::npos)
            return secrets;
        names.remove_prefix(comma + 1);
    }
}

}  // namespace outbox
