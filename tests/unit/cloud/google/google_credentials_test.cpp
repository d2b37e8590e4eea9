// Tokens that are signed here, verified with the public key, and tokens of a scripted metadata
// server.
#include "cloud/google/google_credentials.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>

#include "cloud/google/service_account.hpp"
#include "net/json.hpp"
#include "net/transport.hpp"
#include "service_account_key.hpp"
#include "unit/fake_clock.hpp"
#include "unit/mutations.hpp"
#include "unit/scripted_peer.hpp"

namespace outbox {
namespace {

using State = Credentials::State;

std::string from_base64url(std::string text) {
    for (char& c : text)
        c = c == '-' ? '+' : c == '_' ? '/' : c;
    const std::size_t padding = (4 - text.size() % 4) % 4;
    text.append(padding, '=');
    std::string bytes(text.size(), '\0');
    const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                       reinterpret_cast<const unsigned char*>(text.data()),
                                       static_cast<int>(text.size()));
    bytes.resize(length < 0 ? 0 : static_cast<std::size_t>(length) - padding);
    return bytes;
}

struct Token {
    Json::Value header, claims;
    bool signed_by_key = false;
};

Token taken_apart(const std::string& token) {
    const std::size_t first = token.find('.'), second = token.rfind('.');
    Token taken;
    taken.header = parse_json(from_base64url(token.substr(0, first))).value_or(Json::Value());
    taken.claims = parse_json(from_base64url(token.substr(first + 1, second - first - 1)))
                       .value_or(Json::Value());
    const std::string signature = from_base64url(token.substr(second + 1));
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    EVP_DigestVerifyInit(context, nullptr, EVP_sha256(), nullptr, test_key());
    taken.signed_by_key =
        EVP_DigestVerify(context, reinterpret_cast<const unsigned char*>(signature.data()),
                         signature.size(), reinterpret_cast<const unsigned char*>(token.data()),
                         second) == 1;
    EVP_MD_CTX_free(context);
    return taken;
}

// -- the key ----------------------------------------------------------------------------------

TEST(ServiceAccount, SignsAToken) {
    const Result<ServiceAccount> account = ServiceAccount::parse(key_file());
    ASSERT_TRUE(account.ok()) << account.error().message;
    const std::optional<std::string> text =
        account.value().sign_token("https://example.com/scope", 1'700'000'000, 3600);
    ASSERT_TRUE(text);
    EXPECT_EQ(text->find_first_of("=+/\n"), std::string::npos);
    const Token token = taken_apart(*text);
    EXPECT_TRUE(token.signed_by_key);
    EXPECT_EQ(token.header["alg"], "RS256");
    EXPECT_EQ(token.header["typ"], "JWT");
    EXPECT_EQ(token.header["kid"], "k1");
    EXPECT_EQ(token.claims["iss"], "relay@p.iam.gserviceaccount.com");
    EXPECT_EQ(token.claims["sub"], "relay@p.iam.gserviceaccount.com");
    EXPECT_EQ(token.claims["scope"], "https://example.com/scope");
    EXPECT_FALSE(token.claims.isMember("aud"));  // never both
    EXPECT_EQ(token.claims["iat"], 1'700'000'000);
    EXPECT_EQ(token.claims["exp"], 1'700'003'600);
}

TEST(ServiceAccount, SaysWhatIsWrongWithAKey) {
    EVP_PKEY* ec = EVP_EC_gen("P-256");
    const std::string encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    const std::string pem = pem_of(test_key());
    const struct {
        std::string text, error;
    } table[] = {
        {"", "it is not a JSON object"},
        {"secret", "it is not a JSON object"},
        {"[1]", "it is not a JSON object"},
        {std::string(100'000, '['), "it is not a JSON object"},
        {"{}", "it does not say its type"},
        {key_file_with(pem, "authorized_user"), "its type is not service_account"},
        {R"({"type":"service_account"})", "it has no client_email"},
        {R"({"type":"service_account","client_email":5})", "it has no client_email"},
        {R"({"type":"service_account","client_email":"a@b"})", "it has no private_key"},
        {key_file_with("secret"), "its private_key is not an RSA key in PEM"},
        {key_file_with(pem.substr(0, 500)), "its private_key is not an RSA key in PEM"},
        {key_file_with(encrypted), "its private_key is not an RSA key in PEM"},
        {key_file_with(pem_of(ec)), "its private_key is not an RSA key in PEM"},
    };
    for (const auto& [text, error] : table) {
        const Result<ServiceAccount> account = ServiceAccount::parse(text);
        ASSERT_FALSE(account.ok()) << text;
        EXPECT_EQ(account.error().message, error);
    }
    EVP_PKEY_free(ec);
}

TEST(ServiceAccount, SurvivesAnyText) {
    Mutations texts({key_file()}, "{}\",:-\\n");
    for (int i = 0; i < 2'000; i++)
        static_cast<void>(ServiceAccount::parse(texts.next()));
}

// -- which there are --------------------------------------------------------------------------

class GoogleCredentialsTest : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_TRUE(initialize_curl());
        unsetenv("GOOGLE_APPLICATION_CREDENTIALS");
        setenv("GCE_METADATA_HOST", "127.0.0.1:1", 1);
    }
    void TearDown() override {
        unsetenv("GOOGLE_APPLICATION_CREDENTIALS");
        unsetenv("GCE_METADATA_HOST");
        credentials_.reset();
    }

    GoogleCredentials* create() {
        credentials_ = google_credentials(options_, clock_);
        return credentials_.get();
    }

    // Steps until the credentials that are needed now are there or have failed.
    State need() {
        State state = credentials_->need(clock_.now());
        for (int i = 0; i < 1'000 && state == State::pending; i++) {
            pollfd watched{credentials_->descriptor(), POLLIN, 0};
            poll(&watched, 1, credentials_->deadline() <= clock_.now() ? 0 : 20);
            state = credentials_->step(clock_.now());
        }
        EXPECT_NE(state, State::pending);
        return state;
    }

    // Runs one turn of the loop, in which existing tokens can be used.
    void turn() {
        pollfd watched{credentials_->descriptor(), POLLIN, 0};
        poll(&watched, 1, 5);
        EXPECT_EQ(credentials_->step(clock_.now()), State::ready);
        EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
    }
    void wait_for(const std::string& authorization) {
        for (int i = 0; i < 2'000 && credentials_->authorization() != authorization; i++)
            turn();
        EXPECT_EQ(credentials_->authorization(), authorization);
    }

    Token token() {
        const std::string& value = credentials_->authorization();
        EXPECT_TRUE(value.starts_with("Bearer "));
        return taken_apart(value.substr(7));
    }

    GoogleOptions options_;
    FakeClock clock_;
    std::unique_ptr<GoogleCredentials> credentials_;
};

TEST_F(GoogleCredentialsTest, ATokenIsTakenAsItIs) {
    options_.token = "abc";
    options_.needs_credentials_because = owner_is_no_superuser;
    create();
    EXPECT_EQ(need(), State::ready);
    EXPECT_EQ(credentials_->authorization(), "Bearer abc");
    credentials_->rejected();
    EXPECT_EQ(need(), State::ready);
}

TEST_F(GoogleCredentialsTest, OnlySuperusersMayUseTheIdentityOfTheServer) {
    ScriptedPeer metadata;
    setenv("GCE_METADATA_HOST", metadata.url().substr(7, metadata.url().rfind('/') - 7).c_str(), 1);
    setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere", 1);
    options_.needs_credentials_because = owner_is_no_superuser;
    create();
    EXPECT_EQ(need(), State::failed);
    EXPECT_EQ(credentials_->error(),
              "credentials are required, in the user mapping or in relay.toml: the owner of the "
              "destination is not a superuser");
    EXPECT_EQ(metadata.connections(), 0);
    options_.key = key_file();
    create();
    EXPECT_EQ(need(), State::ready);
}

// -- a key ------------------------------------------------------------------------------------

TEST_F(GoogleCredentialsTest, AKeySignsATokenThatIsUsedUntilItIsAboutToExpire) {
    options_.key = key_file();
    create();
    ASSERT_EQ(need(), State::ready);
    const std::string first = credentials_->authorization();
    EXPECT_TRUE(token().signed_by_key);
    EXPECT_EQ(token().claims["scope"], "https://www.googleapis.com/auth/pubsub");
    EXPECT_EQ(token().claims["iat"].asInt64(), clock_.unix_now() / seconds(1));
    EXPECT_EQ(token().claims["exp"].asInt64(), clock_.unix_now() / seconds(1) + 3600);

    clock_.advance(seconds(3600 - 225 - 1));
    EXPECT_EQ(need(), State::ready);
    EXPECT_EQ(credentials_->authorization(), first);
    clock_.advance(seconds(1));
    EXPECT_EQ(need(), State::ready);
    EXPECT_NE(credentials_->authorization(), first);
    EXPECT_EQ(token().claims["iat"].asInt64(), clock_.unix_now() / seconds(1));
}

TEST_F(GoogleCredentialsTest, ARejectedTokenIsReplaced) {
    options_.key = key_file();
    create();
    ASSERT_EQ(need(), State::ready);
    clock_.advance(seconds(1));
    credentials_->rejected();
    ASSERT_EQ(need(), State::ready);
    EXPECT_EQ(token().claims["iat"].asInt64(), clock_.unix_now() / seconds(1));
}

TEST_F(GoogleCredentialsTest, ErrorsOfAKeyDoNotShowTheKey) {
    options_.key = key_file_with("top secret");
    create();
    EXPECT_EQ(need(), State::failed);
    EXPECT_EQ(
        credentials_->error(),
        "option \"key\" is not the key of a service account: its private_key is not an RSA key in "
        "PEM");
}

class KeyFile : public GoogleCredentialsTest {
  protected:
    void SetUp() override {
        GoogleCredentialsTest::SetUp();
        path_ = testing::TempDir() + "outbox-key-" + std::to_string(getpid()) + ".json";
    }
    void TearDown() override {
        std::remove(path_.c_str());
        GoogleCredentialsTest::TearDown();
    }
    void write(const std::string& text) { std::ofstream(path_) << text; }

    std::string path_;
};

TEST_F(KeyFile, IsReadWhenItIsNeeded) {
    options_.key_file = path_;
    create();
    EXPECT_EQ(need(), State::failed);
    EXPECT_EQ(credentials_->error(),
              "the file of option \"key_file\" cannot be read: No such file or directory");
    write(std::string(1'000'000, ' '));
    EXPECT_EQ(need(), State::failed);
    EXPECT_EQ(credentials_->error(),
              "the file of option \"key_file\" cannot be read: File too large");
    write(key_file());
    EXPECT_EQ(need(), State::ready);
    EXPECT_TRUE(token().signed_by_key);
}

TEST_F(KeyFile, IsReadAgainWhenTheTokenIsRejected) {
    EVP_PKEY* other = EVP_RSA_gen(2048);
    write(key_file_with(pem_of(other)));
    EVP_PKEY_free(other);
    setenv("GOOGLE_APPLICATION_CREDENTIALS", path_.c_str(), 1);
    create();
    ASSERT_EQ(need(), State::ready);
    EXPECT_FALSE(token().signed_by_key);
    write(key_file());
    EXPECT_EQ(need(), State::ready);
    EXPECT_FALSE(token().signed_by_key);
    credentials_->rejected();
    EXPECT_EQ(need(), State::ready);
    EXPECT_TRUE(token().signed_by_key);
}

// -- the metadata server ----------------------------------------------------------------------

std::string http_ok(const std::string& body) {
    return "HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string token_answer(const std::string& token, int lifetime) {
    return http_ok(R"({"access_token":")" + token + R"(","expires_in":)" +
                   std::to_string(lifetime) + R"(,"token_type":"Bearer"})");
}

class MetadataServer : public GoogleCredentialsTest {
  protected:
    void SetUp() override {
        GoogleCredentialsTest::SetUp();
        const std::string url = peer_.url();
        setenv("GCE_METADATA_HOST", url.substr(7, url.rfind('/') - 7).c_str(), 1);
        create();
    }

    ScriptedPeer peer_;
};

TEST_F(MetadataServer, HandsOutATokenThatIsKept) {
    peer_.then({.bytes = token_answer("abc", 3600)});
    EXPECT_EQ(need(), State::ready);
    EXPECT_EQ(credentials_->authorization(), "Bearer abc");
    EXPECT_EQ(need(), State::ready);
    ASSERT_EQ(peer_.requests().size(), 1u);
    const std::string request = peer_.requests().front();
    EXPECT_TRUE(request.starts_with(
        "GET /computeMetadata/v1/instance/service-accounts/default/token HTTP/1.1\r\n"))
        << request;
    EXPECT_NE(request.find("\r\nMetadata-Flavor: Google\r\n"), std::string::npos);
}

TEST_F(MetadataServer, IsAskedAgainAheadOfExpiryWhileTheOldTokenIsUsed) {
    peer_.then({.bytes = token_answer("old", 3600)});
    peer_.then({.bytes = token_answer("new", 3600)});
    ASSERT_EQ(need(), State::ready);
    clock_.advance(seconds(3600 - 225));
    EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->authorization(), "Bearer old");
    wait_for("Bearer new");
    EXPECT_EQ(peer_.requests().size(), 2u);
}

TEST_F(MetadataServer, MayFailAsLongAsTheOldTokenIsValid) {
    peer_.then({.bytes = token_answer("old", 3600)});
    peer_.then({.bytes = "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"});
    peer_.then({.bytes = token_answer("new", 3600)});
    ASSERT_EQ(need(), State::ready);
    clock_.advance(seconds(3600 - 225));
    for (int i = 0; i < 2'000 && peer_.requests().size() < 2; i++)
        turn();
    for (int i = 0; i < 50; i++)  // not asked again at once
        turn();
    EXPECT_EQ(peer_.requests().size(), 2u);
    EXPECT_EQ(credentials_->authorization(), "Bearer old");
    clock_.advance(seconds(10));
    wait_for("Bearer new");
}

TEST_F(MetadataServer, AnExpiredTokenIsNotUsed) {
    peer_.then({.bytes = token_answer("old", 3600)});
    peer_.then({.bytes = token_answer("new", 3600)});
    ASSERT_EQ(need(), State::ready);
    clock_.advance(seconds(3600));
    EXPECT_EQ(credentials_->need(clock_.now()), State::pending);
    EXPECT_EQ(need(), State::ready);
    EXPECT_EQ(credentials_->authorization(), "Bearer new");
}

TEST_F(MetadataServer, IsAskedAgainWhenTheTokenIsRejected) {
    peer_.then({.bytes = token_answer("old", 3600)});
    peer_.then({.bytes = token_answer("new", 3600)});
    ASSERT_EQ(need(), State::ready);
    credentials_->rejected();
    EXPECT_EQ(need(), State::ready);
    EXPECT_EQ(credentials_->authorization(), "Bearer new");
}

TEST_F(MetadataServer, IsNotAskedOverAndOverForATokenThatNeverLastsLong) {
    peer_.then({.bytes = token_answer("short", 60)});
    ASSERT_EQ(need(), State::ready);
    clock_.advance(seconds(29));
    EXPECT_EQ(need(), State::ready);
    EXPECT_EQ(peer_.requests().size(), 1u);
    clock_.advance(seconds(1));
    peer_.then({.bytes = token_answer("next", 60)});
    wait_for("Bearer next");
}

TEST_F(MetadataServer, AnUnexpectedAnswerIsTheError) {
    const struct {
        std::string answer, error;
    } table[] = {
        {"HTTP/1.1 404 x\r\nContent-Length: 9\r\n\r\nno secret", "HTTP 404: no secret"},
        {token_answer("secret", 0), "its answer is malformed"},
        {http_ok("what?"), "its answer is malformed"},
        {http_ok(R"({"access_token":"secret"})"), "its answer is malformed"},
        {token_answer("", 3600), "its answer is malformed"},
        {token_answer("secret", -1), "its answer is malformed"},
        {token_answer("secret\\r\\nx: y", 3600), "its answer is malformed"},
        {token_answer(std::string(20'000, 'x'), 3600), "its answer is malformed"},
    };
    for (const auto& [answer, error] : table) {
        peer_.then({.bytes = answer});
        EXPECT_EQ(need(), State::failed) << answer;
        EXPECT_EQ(
            credentials_->error(),
            "no credentials in the user mapping, and none from the metadata server: " + error);
    }
    peer_.then({.bytes = token_answer("abc", 3600)});
    EXPECT_EQ(need(), State::ready);
}

TEST_F(MetadataServer, AMissingServerIsAnError) {
    setenv("GCE_METADATA_HOST", "127.0.0.1:1", 1);
    create();
    EXPECT_EQ(need(), State::failed);
    EXPECT_NE(credentials_->error().find("onnect"), std::string::npos) << credentials_->error();
    setenv("GCE_METADATA_HOST", "no host\n", 1);
    create();
    EXPECT_EQ(need(), State::failed);
    EXPECT_EQ(credentials_->error(), "GCE_METADATA_HOST is not a host");
}

TEST_F(MetadataServer, SurvivesAnyAnswer) {
    Mutations bodies({R"({"access_token":"abc","expires_in":1,"token_type":"Bearer"})"},
                     R"({}[]":,\u0n1)");
    for (int i = 0; i < 500; i++) {
        peer_.then({.bytes = http_ok(bodies.next())});
        if (need() == State::ready) {
            EXPECT_TRUE(credentials_->authorization().starts_with("Bearer "));
        }
        credentials_->rejected();
    }
}

}  // namespace
}  // namespace outbox
