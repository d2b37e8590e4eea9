// Tokens of a scripted issuer, and tokens for MSK beside those of Amazon's own signer.
#include <gmock/gmock.h>
#include <poll.h>

#include "core/base64.hpp"
#include "net/transport.hpp"
#include "sinks/kafka/msk_token.hpp"
#include "sinks/kafka/oidc_token.hpp"
#include "unit/drive.hpp"
#include "unit/fake_clock.hpp"
#include "unit/scripted_peer.hpp"

namespace outbox {
namespace {

using State = Credentials::State;
using testing::HasSubstr;
using testing::Not;

Reply answer(const std::string& body, const std::string& status = "200 OK") {
    return {.bytes = "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
                     "\r\n\r\n" + body};
}

Reply token(const std::string& value, int expires_in = 100) {
    return answer(R"({"access_token":")" + value + R"(","token_type":"Bearer","expires_in":)" +
                  std::to_string(expires_in) + "}");
}

class OidcToken : public testing::Test {
  protected:
    OidcToken() {
        initialize_curl();
        options_.login.mechanism = "OAUTHBEARER";
        options_.login.token_endpoint = issuer_.url();
        options_.login.client_id = "the client";
        options_.login.client_secret = "s3cret+of/it";
        options_.https.allowed_hosts = AllowedHosts::parse("127.0.0.1").value();
    }

    void make() { source_ = oidc_token(options_, clock_); }

    State fetched() {
        if (source_ == nullptr)
            make();
        State state = source_->need(clock_.now());
        const Micros give_up = system_.now() + patience;
        while (source_->is_fetching() && system_.now() < give_up) {
            pollfd watched{source_->descriptor(), POLLIN, 0};
            poll(&watched, 1, 10);
            state = source_->step(clock_.now());
        }
        return state;
    }

    // The error after this answer.
    std::string error_after(Reply reply) {
        issuer_.then(std::move(reply));
        make();
        EXPECT_EQ(fetched(), State::failed);
        return source_->error();
    }

    ScriptedPeer issuer_;
    FakeClock clock_;
    SystemClock system_;
    KafkaOptions options_;
    std::unique_ptr<TokenSource> source_;
};

TEST_F(OidcToken, IsAskedForWithTheCredentialsOfTheClient) {
    options_.login.scope = "kafka:write other";
    issuer_.then(token("abc.def"));
    EXPECT_EQ(fetched(), State::ready);
    EXPECT_EQ(source_->token().value, "abc.def");
    EXPECT_EQ(source_->token().principal, "the client");
    EXPECT_EQ(source_->token().expires, clock_.unix_now() + seconds(100));
    const std::string request = issuer_.requests().at(0);
    std::string pair;
    append_base64(pair, "the%20client:s3cret%2Bof%2Fit");
    EXPECT_THAT(request, testing::StartsWith("POST /events HTTP/1.1"));
    EXPECT_THAT(request, HasSubstr("Authorization: Basic " + pair + "\r\n"));
    EXPECT_THAT(request, HasSubstr("Content-Type: application/x-www-form-urlencoded\r\n"));
    EXPECT_THAT(request, HasSubstr("\r\n\r\ngrant_type=client_credentials"
                                   "&scope=kafka%3Awrite%20other"));
}

TEST_F(OidcToken, IsRenewedBeforeItExpires) {
    issuer_.then(token("one"));
    EXPECT_EQ(fetched(), State::ready);
    clock_.advance(seconds(74));
    EXPECT_EQ(fetched(), State::ready);
    EXPECT_EQ(issuer_.requests().size(), 1u);
    clock_.advance(seconds(2));
    issuer_.then(token("two"));
    EXPECT_EQ(fetched(), State::ready);
    EXPECT_EQ(source_->token().value, "two");
}

TEST_F(OidcToken, ThatCannotBeRenewedIsUsedUntilItExpires) {
    issuer_.then(token("one"));
    EXPECT_EQ(fetched(), State::ready);
    clock_.advance(seconds(80));
    issuer_.then(answer("", "503 x"));
    EXPECT_EQ(fetched(), State::ready);
    EXPECT_EQ(source_->token().value, "one");
    clock_.advance(seconds(30));
    issuer_.then(answer("", "503 x"));
    EXPECT_EQ(fetched(), State::failed);
    EXPECT_THAT(source_->error(), HasSubstr("HTTP 503"));
}

TEST_F(OidcToken, IsNotAskedForAgainAtOnce) {
    EXPECT_THAT(error_after(answer("", "503 x")), HasSubstr("HTTP 503"));
    EXPECT_EQ(source_->need(clock_.now()), State::failed);
    EXPECT_EQ(issuer_.requests().size(), 1u);
    clock_.advance(seconds(1));
    issuer_.then(token("one"));
    EXPECT_EQ(fetched(), State::ready);
    EXPECT_EQ(source_->error(), "");
}

TEST_F(OidcToken, IsFetchedAgainWhenABrokerRefusedIt) {
    issuer_.then(token("one"));
    EXPECT_EQ(fetched(), State::ready);
    source_->rejected();
    issuer_.then(token("two"));
    EXPECT_EQ(fetched(), State::ready);
    EXPECT_EQ(source_->token().value, "two");
}

TEST_F(OidcToken, SaysWhatIsWrongWithAnAnswer) {
    const std::string nowhere = "no token of 127.0.0.1:";
    EXPECT_THAT(error_after(answer(R"({"error":"invalid_client"})", "401 Unauthorized")),
                testing::AllOf(testing::StartsWith(nowhere), HasSubstr("HTTP 401"),
                               HasSubstr("invalid_client")));
    for (const char* body : {"", "[]", "{\"access_token\":", "\"text\""})
        EXPECT_THAT(error_after(answer(body)), HasSubstr("not a JSON object")) << body;
    for (const char* body :
         {"{}", R"({"access_token":""})", R"({"access_token":1})", R"({"access_token":"a b"})",
          R"({"access_token":"a\u0000b"})", R"({"access_token":"ä"})"})
        EXPECT_THAT(error_after(answer(body)), HasSubstr("access_token")) << body;
    for (const char* expires_in : {"null", "0", "-1", "\"\"", "\"x\"", "1.5", "{}"})
        EXPECT_THAT(error_after(answer(R"({"access_token":"a","expires_in":)" +
                                       std::string(expires_in) + "}")),
                    HasSubstr("expires_in"))
            << expires_in;
    EXPECT_THAT(error_after(answer(R"({"access_token":"a"})")), HasSubstr("expires_in"));
    EXPECT_THAT(error_after(answer(R"({"access_token":"a","expires_in":9,"token_type":"DPoP"})")),
                HasSubstr("token_type"));
    EXPECT_THAT(error_after(answer("{\"access_token\":\"" + std::string(70'000, 'x') + "\"}")),
                HasSubstr("too large"));
    EXPECT_THAT(error_after(answer(R"({"access_token":"tok-s3cret"})", "203 x")),
                Not(HasSubstr("tok-s3cret")));
    EXPECT_THAT(error_after({.bytes = "", .close = true}), HasSubstr("connection closed"));
}

TEST_F(OidcToken, TakesLifetimesAsIssuersWriteThem) {
    issuer_.then(answer(R"({"access_token":"a","expires_in":"60"})"));
    EXPECT_EQ(fetched(), State::ready);
    EXPECT_EQ(source_->token().expires, clock_.unix_now() + seconds(60));
    make();
    issuer_.then(answer(R"({"access_token":"a","expires_in":9223372036854775807})"));
    EXPECT_EQ(fetched(), State::ready);
    EXPECT_GT(source_->token().expires, clock_.unix_now());
}

TEST_F(OidcToken, IsNotFetchedWhereItMayNot) {
    options_.https.allowed_hosts = AllowedHosts::parse("example.com").value();
    make();
    EXPECT_EQ(fetched(), State::failed);
    EXPECT_THAT(source_->error(), HasSubstr("is not allowed"));
    EXPECT_EQ(issuer_.connections(), 0);
}

TEST_F(OidcToken, NeedsASecret) {
    options_.login.client_secret = "";
    make();
    EXPECT_EQ(fetched(), State::failed);
    EXPECT_THAT(source_->error(), HasSubstr("client_secret"));
    EXPECT_EQ(issuer_.connections(), 0);
}

// No error shows a secret that the answer repeats.
TEST_F(OidcToken, ConcealsTheSecretThatAnAnswerRepeats) {
    std::string pair;
    append_base64(pair, "the%20client:s3cret%2Bof%2Fit");
    EXPECT_THAT(error_after(answer("you said " + pair, "400 x")), Not(HasSubstr(pair)));
}

// -------------------------------------------------------------------------------------------------
// MSK
// -------------------------------------------------------------------------------------------------

// 2025-08-30 12:36:00
constexpr Micros time_of_signature = seconds(1'756'557'360);

// Made with aws-msk-iam-sasl-signer-python 1.0.2 and botocore 1.44.
TEST(MskToken, IsThatOfAmazonsSigner) {
    AwsKeys keys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
    EXPECT_EQ(
        base64_decoded(sign_msk_token("eu-west-1", keys, time_of_signature)).value_or(""),
        "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm="
        "AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20250830%2Feu-west-1%2Fkafka-cluster%2F"
        "aws4_request&X-Amz-Date=20250830T123600Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host&"
        "X-Amz-Signature=bf4a9e785fcfa085d18ec5fe1a5d0963fb41f5a341fcaa3865dfb6117f0bcfe5&"
        "User-Agent=pg_outbox");
    keys.session_token = "IQoJ+session/token==";
    EXPECT_THAT(base64_decoded(sign_msk_token("eu-west-1", keys, time_of_signature)).value_or(""),
                testing::AllOf(
                    HasSubstr("&X-Amz-Security-Token=IQoJ%2Bsession%2Ftoken%3D%3D&"),
                    HasSubstr("5ea5e4e056677407cfb98f66444dadf98a6c95a9d5a5146587dc317374090c5b")));
}

TEST(MskToken, HasTheAlphabetForUrlsAndNoPadding) {
    const AwsKeys keys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
    for (int second = 0; second < 60; second++)
        EXPECT_EQ(sign_msk_token("eu-west-1", keys, time_of_signature + seconds(second))
                      .find_first_of("+/="),
                  std::string::npos);
}

TEST(MskToken, IsSignedAgainBeforeItExpires) {
    FakeClock clock;
    KafkaOptions options;
    options.login.mechanism = "AWS_MSK_IAM";
    options.login.aws.region = "eu-west-1";
    options.login.aws.access_key_id = "AKIDEXAMPLE";
    options.login.aws.secret_access_key = "secret";
    const auto source = msk_token(options, clock);
    EXPECT_EQ(source->need(clock.now()), State::ready);
    const std::string first = source->token().value;
    EXPECT_EQ(source->token().expires, clock.unix_now() + seconds(900));
    clock.advance(seconds(600));
    EXPECT_EQ(source->need(clock.now()), State::ready);
    EXPECT_EQ(source->token().value, first);
    clock.advance(seconds(80));
    EXPECT_EQ(source->need(clock.now()), State::ready);
    EXPECT_NE(source->token().value, first);
}

TEST(MskToken, NeedsKeys) {
    FakeClock clock;
    KafkaOptions options;
    options.login.mechanism = "AWS_MSK_IAM";
    options.login.aws.needs_credentials_because = owner_is_no_superuser;
    const auto source = msk_token(options, clock);
    EXPECT_EQ(source->need(clock.now()), State::failed);
    EXPECT_THAT(source->error(), HasSubstr("access_key_id"));
}

}  // namespace
}  // namespace outbox
