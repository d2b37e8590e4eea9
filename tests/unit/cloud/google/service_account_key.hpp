// A made-up key of a service account.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include <string>

#include "core/text.hpp"

namespace outbox {

inline EVP_PKEY* test_key() {
    static EVP_PKEY* key = EVP_RSA_gen(2048);
    return key;
}

inline std::string pem_of(EVP_PKEY* key) {
    BIO* bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    std::string pem(data, static_cast<std::size_t>(size));
    BIO_free(bio);
    return pem;
}

inline std::string key_file_with(const std::string& pem,
                                 const std::string& type = "service_account") {
    std::string text = R"({"type":")" + type + R"(","private_key_id":"k1",)" +
                       R"("client_email":"relay@p.iam.gserviceaccount.com","private_key":)";
    append_json_string(text, pem);
    return text + "}\n";
}

inline std::string key_file() {
    return key_file_with(pem_of(test_key()));
}

}  // namespace outbox
