// Signatures of requests: against the example of the specification, and checked with the public key.
#include "sinks/http/webhook_signature.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/base64.hpp"
#include "unit/sample_event.hpp"

namespace outbox {
namespace {

using Texts = std::vector<std::string>;

// Of RFC 8032, section 7.1, test 1.
const std::string seed =
    "\x9d\x61\xb1\x9d\xef\xfd\x5a\x60\xba\x84\x4a\xf4\x92\xec\x2c\xc4"
    "\x44\x49\xc5\x69\x7b\x32\x69\x19\x70\x3b\xac\x03\x1c\xae\x7f\x60";
const std::string public_key =
    "\xd7\x5a\x98\x01\x82\xb1\x0a\xb7\xd5\x4b\xfe\xd3\xc9\x64\x07\x3a"
    "\x0e\xe1\x72\xf3\xda\xa6\x23\x25\xaf\x02\x1a\x68\xf7\x07\x51\x1a";

std::string marked(const std::string& mark, const std::string& bytes) {
    std::string text = mark;
    append_base64(text, bytes);
    return text;
}

WebhookSigner signer(const Texts& secrets, const Texts& keys = {}) {
    Result<WebhookSigner> made = WebhookSigner::create(secrets, keys);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return std::move(made.value());
}

std::string headers_of(WebhookSigner& signer, std::string_view body,
                       Micros time = seconds(1'614'265'330) + 999'999) {
    std::string lines;
    signer.append_headers(lines, "msg_p5jXN8AQM9LWM0D4loKWxJek", time, body);
    return lines;
}

// The signatures of a request, without the header's name.
std::vector<std::string> signatures_in(const std::string& lines) {
    const std::string name = "webhook-signature: ";
    std::string rest = lines.substr(lines.find(name) + name.size());
    EXPECT_TRUE(rest.ends_with("\r\n"));
    rest.resize(rest.size() - 2);
    std::vector<std::string> found;
    for (std::size_t blank; (blank = rest.find(' ')) != rest.npos; rest.erase(0, blank + 1))
        found.push_back(rest.substr(0, blank));
    found.push_back(rest);
    return found;
}

bool is_signed_by(const std::string& key, const std::string& signature, const std::string& text) {
    const auto bytes = [](const std::string& of) {
        return reinterpret_cast<const unsigned char*>(of.data());
    };
    const std::optional<std::string> value = base64_decoded(signature.substr(4));
    EVP_PKEY* const pkey =
        EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, bytes(key), key.size());
    EVP_MD_CTX* const context = EVP_MD_CTX_new();
    const bool valid =
        signature.starts_with("v1a,") && value && pkey != nullptr &&
        EVP_DigestVerifyInit(context, nullptr, nullptr, nullptr, pkey) == 1 &&
        EVP_DigestVerify(context, bytes(*value), value->size(), bytes(text), text.size()) == 1;
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(pkey);
    return valid;
}

const std::string secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const std::string body = R"({"test": 2432232314})";
const std::string signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

TEST(WebhookSignature, IsThatOfTheSpecificationEveryTime) {
    WebhookSigner one = signer({secret, ""}, {"", ""});
    EXPECT_TRUE(one);
    for (int times = 0; times < 3; times++)
        EXPECT_EQ(headers_of(one, body),
                  "webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek\r\n"
                  "webhook-timestamp: 1614265330\r\n"
                  "webhook-signature: " +
                      signature + "\r\n");
    EXPECT_NE(headers_of(one, body + "x").find("webhook-signature: v1,"), std::string::npos);
    EXPECT_EQ(headers_of(one, body + "x").find(signature), std::string::npos);
    EXPECT_EQ(headers_of(one, body, seconds(1'614'265'331)).find(signature), std::string::npos);
}

TEST(WebhookSignature, TwoSecretsSignBoth) {
    WebhookSigner both = signer({secret, marked("whsec_", std::string(64, 'x'))});
    WebhookSigner swapped = signer({marked("whsec_", std::string(64, 'x')), secret});
    const auto found = signatures_in(headers_of(both, body));
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0], signature);
    EXPECT_NE(found[1], signature);
    EXPECT_EQ(signatures_in(headers_of(swapped, body))[1], signature);
    EXPECT_EQ(both.describe(), "2 signatures v1");
}

TEST(WebhookSignature, OfAKeyIsValidForItsPublicKey) {
    for (const std::string& bytes : {seed, seed + public_key}) {
        WebhookSigner one = signer({}, {marked("whsk_", bytes), ""});
        for (const std::string& body : {std::string(R"({"n":1})"), std::string("\0\xff", 2),
                                        std::string(), std::string(100'000, 'x')}) {
            const auto found = signatures_in(headers_of(one, body));
            ASSERT_EQ(found.size(), 1u);
            const std::string text = "msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330." + body;
            EXPECT_TRUE(is_signed_by(public_key, found[0], text));
            EXPECT_FALSE(is_signed_by(public_key, found[0], text + "x"));
        }
        EXPECT_EQ(one.describe(), "1 signature v1a");
    }
}

TEST(WebhookSignature, SecretsComeBeforeKeys) {
    WebhookSigner both = signer({secret}, {marked("whsk_", seed), marked("whsk_", seed)});
    const auto found = signatures_in(headers_of(both, body));
    ASSERT_EQ(found.size(), 3u);
    EXPECT_EQ(found[0], signature);
    EXPECT_EQ(found[1], found[2]);
    EXPECT_EQ(both.describe(), "1 signature v1 and 2 signatures v1a");
}

TEST(WebhookSignature, WithoutSecretsAndKeysThereIsNoSigner) {
    EXPECT_FALSE(signer({"", ""}, {"", ""}));
}

TEST(WebhookSignature, HalvesOfDifferentKeysAreRefused) {
    const Texts keys{marked("whsk_", seed + std::string(32, 'x'))};
    const Result<WebhookSigner> made = WebhookSigner::create({}, keys);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().message, "the two halves of the signing key do not belong together");
}

TEST(WebhookId, IsThatOfTheEventOrOfAllEventsInTheirOrder) {
    SampleEvent one, two;
    two.event.event_id[15] = 0;
    Event *first = &one.event, *second = &two.event;
    const auto id_of = [](std::vector<Event*> events) {
        std::string id;
        append_webhook_id(id, events);
        return id;
    };
    EXPECT_EQ(id_of({first}), "00112233-4455-6677-8899-aabbccddeeff");
    const std::string both = id_of({first, second});
    EXPECT_EQ(both, id_of({first, second}));
    EXPECT_NE(both, id_of({second, first}));
    EXPECT_EQ(both.size(), std::string("batch_").size() + 32);
    EXPECT_EQ(both.find('.'), std::string::npos);
}

}  // namespace
}  // namespace outbox
