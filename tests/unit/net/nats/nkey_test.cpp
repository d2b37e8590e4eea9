#include "net/nats/nkey.hpp"

#include <gtest/gtest.h>

#include <string>

namespace outbox {
namespace {

// The pair in the documentation of NATS.
const std::string seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
const std::string public_key = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

TEST(NatsKey, HasAPublicKeyAndSigns) {
    const std::optional<NatsKey> key = NatsKey::parse(" " + seed + "\n");
    ASSERT_TRUE(key);
    EXPECT_EQ(key->public_key, public_key);
    const std::string signature = key->sign("nonce");
    EXPECT_EQ(signature.size(), 86u);
    EXPECT_EQ(signature, key->sign("nonce"));
    EXPECT_NE(signature, key->sign("another"));
    EXPECT_EQ(signature.find_first_of("+/="), std::string::npos);
}

TEST(NatsKey, OtherTextIsNotASeed) {
    std::string changed = seed;
    changed[20] = changed[20] == 'A' ? 'B' : 'A';
    for (const std::string& text : {std::string(), changed, public_key, seed.substr(1), seed + "A",
                                    std::string(58, '1'), std::string(58, 'A')})
        EXPECT_FALSE(NatsKey::parse(text)) << text;
}

std::string file(const std::string& jwt, const std::string& key) {
    return "-----BEGIN NATS USER JWT-----\r\n" + jwt +
           "\r\n------END NATS USER JWT------\r\n\r\n-----BEGIN USER NKEY SEED-----\n" + key +
           "\n------END USER NKEY SEED------\n";
}

TEST(NatsCredentials, AreReadFromTheTextOfAFile) {
    const std::optional<NatsCredentials> read = NatsCredentials::parse(file("a.b---c.d", seed));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->jwt, "a.b---c.d");
    EXPECT_EQ(read->key.public_key, public_key);
    EXPECT_FALSE(NatsCredentials::parse(""));
    EXPECT_FALSE(NatsCredentials::parse(file("", seed)));
    EXPECT_FALSE(NatsCredentials::parse(file("a.b.c", "SU")));
    EXPECT_FALSE(NatsCredentials::parse("BEGIN NATS USER JWT"));
}

}  // namespace
}  // namespace outbox
