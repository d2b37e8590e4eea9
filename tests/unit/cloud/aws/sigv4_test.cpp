// Signatures of AWS's own test suite, and of requests to SQS and SNS as signed by botocore 1.44.
#include "cloud/aws/sigv4.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

struct Vector {
    std::string_view name;
    SignedRequest request;  // Host and X-Amz-Date are added
    std::string_view signed_headers;
    std::string_view signature;
};

class Sigv4Suite : public testing::TestWithParam<Vector> {};

TEST_P(Sigv4Suite, HasTheExpectedSignature) {
    const Vector& vector = GetParam();
    const AwsKeys keys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
    SignedRequest request = vector.request;
    request.headers.push_back({"X-Amz-Date", "20150830T123600Z"});
    request.headers.push_back({"Host", "example.amazonaws.com"});
    Sigv4 signature("us-east-1", "service");
    EXPECT_EQ(signature.authorization(request, keys, "20150830T123600Z"),
              "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
              "SignedHeaders=" +
                  std::string(vector.signed_headers) +
                  ", Signature=" + std::string(vector.signature))
        << canonical_request(request);
}

constexpr std::string_view unreserved =
    "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const std::string unreserved_path = "/" + std::string(unreserved);
const std::string unreserved_query = std::string(unreserved) + "=" + std::string(unreserved);
constexpr std::string_view plain = "host;x-amz-date";
constexpr std::string_view get_root =
    "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";
constexpr std::string_view post_root =
    "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b";

SignedRequest get(std::string_view path, std::string_view query = "") {
    return {.method = "GET", .path = path, .query = query};
}

SignedRequest get_with(std::vector<HeaderField> headers) {
    return {.method = "GET", .headers = std::move(headers)};
}

INSTANTIATE_TEST_SUITE_P(
    Published, Sigv4Suite,
    testing::Values(
        Vector{"vanilla", get("/"), plain, get_root},
        Vector{"key_duplicate",
               get_with(
                   {{"My-Header1", "value2"}, {"My-Header1", "value2"}, {"My-Header1", "value1"}}),
               "host;my-header1;x-amz-date",
               "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
        Vector{"value_order",
               get_with({{"My-Header1", "value4"},
                         {"My-Header1", "value1"},
                         {"My-Header1", "value3"},
                         {"My-Header1", "value2"}}),
               "host;my-header1;x-amz-date",
               "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
        Vector{"value_trim",
               get_with({{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}}),
               "host;my-header1;my-header2;x-amz-date",
               "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
        Vector{"unreserved", get(unreserved_path), plain,
               "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
        Vector{"utf8", get("/\u1234"), plain,
               "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
        Vector{"query", get("/", "Param1=value1"), plain,
               "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
        Vector{"query_order_encoded", get("/", "Param-3=Value3&Param=Value2&%E1%88%B4=Value1"),
               plain, "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac"},
        Vector{"query_order_key_case", get("/", "Param2=value2&Param1=value1"), plain,
               "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
        Vector{"query_order_key", get("/", "Param1=value2&Param1=Value1"), plain,
               "eedbc4e291e521cf13422ffca22be7d2eb8146eecf653089df300a15b2382bd1"},
        Vector{"query_order_value", get("/", "Param1=value2&Param1=value1"), plain,
               "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694"},
        Vector{"query_unreserved", get("/", unreserved_query), plain,
               "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
        Vector{"utf8_query", get("/", "\u1234=bar"), plain,
               "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
        Vector{"session_token",
               get_with({{"X-Amz-Security-Token",
                          "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"}}),
               "host;x-amz-date;x-amz-security-token",
               "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8"},
        Vector{"relative_relative", get("/example1/example2/../.."), plain, get_root},
        Vector{"relative", get("/example/.."), plain, get_root},
        Vector{"slash_dot_slash", get("/./"), plain, get_root},
        Vector{"slash_pointless_dot", get("/./example"), plain,
               "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5"},
        Vector{"slash", get("//"), plain, get_root},
        Vector{"slashes", get("//example//"), plain,
               "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84"},
        Vector{"space", get("/example space/"), plain,
               "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
        Vector{"special_character", get("/example/$delete"), plain,
               "a853c9b21b528b19643d00910d35b83a10c366a10833ceefb45edd6c80e40f27"},
        Vector{"post", {}, plain, post_root},
        Vector{"post_query",
               {.query = "Param1=value1"},
               plain,
               "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
        Vector{"post_value_case",
               {.headers = {{"My-Header1", "VALUE1"}}},
               "host;my-header1;x-amz-date",
               "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
        Vector{"post_form",
               {.headers = {{"Content-Type", "application/x-www-form-urlencoded"}},
                .body = "Param1=value1"},
               "content-type;host;x-amz-date",
               "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
        Vector{"post_form_parameters",
               {.headers = {{"Content-Type", "application/x-www-form-urlencoded; charset=utf8"}},
                .body = "Param1=value1"},
               "content-type;host;x-amz-date",
               "1a72ec8f64bd914b0e42e42607c7fbce7fb2c7465f63e3092b3b0d39fa77a6fe"}),
    [](const auto& info) { return std::string(info.param.name); });

std::string signature_in(const std::string& authorization) {
    return authorization.substr(authorization.rfind('=') + 1);
}

TEST(Sigv4, SignsRequestsToSqsAndSnsAsBotocoreDoes) {
    constexpr std::string_view time = "20261120T190000Z";
    EXPECT_EQ(signature_in(
                  Sigv4("eu-west-1", "sqs")
                      .authorization({.headers = {{"Content-Type", "application/x-amz-json-1.0"},
                                                  {"X-Amz-Date", time},
                                                  {"X-Amz-Target", "AmazonSQS.SendMessageBatch"},
                                                  {"Host", "sqs.eu-west-1.amazonaws.com"}},
                                      .body = R"({"QueueUrl":"https://sqs.eu-west-1.amazonaws.com/)"
                                              R"(123456789012/orders","Entries":[]})"},
                                     {"AKIAEXAMPLE", "s3cret/access+key", ""}, time)),
              "1906dedb9616280596c4ff2075df65917ae866922cb6ff973ff2154ac925cf24");
    EXPECT_EQ(
        signature_in(
            Sigv4("eu-west-1", "sns")
                .authorization({.headers = {{"Content-Type",
                                             "application/x-www-form-urlencoded; charset=utf-8"},
                                            {"X-Amz-Date", time},
                                            {"X-Amz-Security-Token", "t0ken/+=="},
                                            {"Host", "127.0.0.1:5000"}},
                                .body = "Action=PublishBatch&Version=2010-03-31&TopicArn="
                                        "arn%3Aaws%3Asns%3Aeu-west-1%3A123456789012%3Aorders"},
                               {"ASIAEXAMPLE", "s3cret/access+key", "t0ken/+=="}, time)),
        "5c9153bf70a3346a8861f063a3e3f327f5eab29bf2a444fa58b43decfcefc2f0");
}

// The derived key is cached, but only for the same secret and day.
TEST(Sigv4, DerivesAnotherKeyForAnotherSecretOrDay) {
    const auto sign = [](Sigv4& signature, const char* secret, const char* time) {
        return signature.authorization({}, {"id", secret, ""}, time);
    };
    Sigv4 kept("eu-west-1", "sqs");
    for (const auto& [secret, time] : {std::pair{"a", "20261120T235959Z"},
                                       {"a", "20261121T000000Z"},
                                       {"b", "20261121T000000Z"},
                                       {"a", "20261120T235959Z"}}) {
        Sigv4 fresh("eu-west-1", "sqs");
        EXPECT_EQ(sign(kept, secret, time), sign(fresh, secret, time)) << secret << " " << time;
    }
}

TEST(Sigv4, WritesTimesAsTheyAreSigned) {
    EXPECT_EQ(basic_timestamp(0), "19700101T000000Z");
    EXPECT_EQ(basic_timestamp(seconds(1'440'938'160) + 999'999), "20150830T123600Z");
}

}  // namespace
}  // namespace outbox
