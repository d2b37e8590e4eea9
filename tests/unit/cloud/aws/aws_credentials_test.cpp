// All sources of keys, their precedence, and the times at which keys are fetched again.
#include "cloud/aws/aws_credentials.hpp"

#include <gmock/gmock.h>
#include <poll.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "cloud/aws/shared_file.hpp"
#include "core/small_file.hpp"
#include "net/transport.hpp"
#include "unit/fake_clock.hpp"
#include "unit/mutations.hpp"
#include "unit/scripted_peer.hpp"

namespace outbox {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using State = Credentials::State;

Reply ok(const std::string& body) {
    return {.bytes = "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) +
                     "\r\n\r\n" + body};
}
Reply status(int code) {
    return {.bytes = "HTTP/1.1 " + std::to_string(code) + " x\r\nContent-Length: 0\r\n\r\n"};
}

// The fake clock stands at 2027-01-15 08:00:00.
std::string json_keys(const std::string& id,
                      const std::string& expiration = "2027-01-15T09:00:00Z") {
    return R"({"Code":"Success","AccessKeyId":")" + id +
           R"(","SecretAccessKey":"secret","Token":"token","Expiration":")" + expiration + "\"}";
}

std::string sts_answer(const std::string& id) {
    return "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
           "<AccessKeyId>" +
           id +
           "</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token</"
           "SessionToken>"
           "<Expiration>2027-01-15T09:00:00Z</Expiration></Credentials>"
           "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
}

class TemporaryFile {
  public:
    explicit TemporaryFile(const std::string& text) {
        close(mkstemp(path_));
        write(text);
    }
    ~TemporaryFile() { std::remove(path_); }
    void write(const std::string& text) { std::ofstream(path_) << text; }
    std::string path() const { return path_; }

  private:
    char path_[32] = "/tmp/outbox-credentials-XXXXXX";
};

class AwsCredentialsTest : public testing::Test {
  protected:
    AwsCredentialsTest() {
        initialize_curl();
        options_.region = "eu-west-1";
        environment_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = peer_url();
    }

    std::string peer_url() const {
        const std::string url = peer_.url();
        return url.substr(0, url.rfind('/'));
    }

    AwsCredentials& create() {
        credentials_.emplace(options_, seconds(10), clock_, [this](const char* name) {
            const auto found = environment_.find(name);
            return found != environment_.end() ? found->second : "";
        });
        return *credentials_;
    }

    // Steps until the keys are there or have failed. The fake clock stands still.
    State settle() {
        State state = credentials_->need(clock_.now());
        for (int i = 0; state == State::pending && i < 1'000; i++)
            state = step();
        return state;
    }

    State step() {
        pollfd watched{credentials_->descriptor(), POLLIN, 0};
        poll(&watched, 1, credentials_->deadline() <= clock_.now() ? 0 : 20);
        return credentials_->step(clock_.now());
    }

    // Finishes a renewal that is under way while the old keys are still valid.
    void finish_renewal(std::size_t requests) {
        for (int i = 0; i < 1'000 && peer_.requests().size() < requests; i++)
            step();
        for (int i = 0; i < 1'000 && (i < 10 || credentials_->deadline() != never); i++)
            step();
        EXPECT_EQ(peer_.requests().size(), requests);
    }

    // Scripts all answers of the metadata service.
    void instance_gives(const std::string& id,
                        const std::string& expiration = "2027-01-15T09:00:00Z") {
        peer_.then(ok("session"));
        peer_.then(ok("my@role\nother"));
        peer_.then(ok(json_keys(id, expiration)));
    }

    FakeClock clock_;
    ScriptedPeer peer_;
    AwsOptions options_;
    std::map<std::string, std::string> environment_;
    std::optional<AwsCredentials> credentials_;
};

// ---------------------------------------------------------------------------------------------
// Sources
// ---------------------------------------------------------------------------------------------

TEST_F(AwsCredentialsTest, TheUserMappingComesFirst) {
    environment_["AWS_ACCESS_KEY_ID"] = "from the environment";
    environment_["AWS_SECRET_ACCESS_KEY"] = "secret";
    options_.access_key_id = "AKIA";
    options_.secret_access_key = "secret";
    options_.session_token = "token";
    options_.needs_credentials_because = owner_is_no_superuser;
    ASSERT_EQ(create().need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "AKIA");
    EXPECT_EQ(credentials_->keys().session_token, "token");
    credentials_->rejected();
    EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
}

TEST_F(AwsCredentialsTest, AnIncompleteUserMappingIsRefused) {
    options_.access_key_id = "AKIA";
    ASSERT_EQ(create().need(clock_.now()), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("both access_key_id and secret_access_key"));
}

TEST_F(AwsCredentialsTest, OnlySuperusersMayUseTheIdentityOfTheServer) {
    const TemporaryFile file("[default]\naws_access_key_id=a\naws_secret_access_key=b\n");
    environment_["AWS_ACCESS_KEY_ID"] = "AKIA";
    environment_["AWS_SECRET_ACCESS_KEY"] = "secret";
    environment_["AWS_SHARED_CREDENTIALS_FILE"] = file.path();
    options_.needs_credentials_because = owner_is_no_superuser;
    EXPECT_EQ(create().need(clock_.now()), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("user mapping"));
    EXPECT_EQ(peer_.connections(), 0);
}

TEST_F(AwsCredentialsTest, TheEnvironmentComesSecond) {
    environment_["AWS_ACCESS_KEY_ID"] = "AKIA";
    EXPECT_EQ(create().need(clock_.now()), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("AWS_SECRET_ACCESS_KEY"));
    environment_["AWS_SECRET_ACCESS_KEY"] = "secret";
    environment_["AWS_SESSION_TOKEN"] = "token";
    EXPECT_EQ(create().need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "AKIA");
    EXPECT_EQ(credentials_->keys().secret_access_key, "secret");
    EXPECT_EQ(credentials_->keys().session_token, "token");
}

TEST_F(AwsCredentialsTest, AWebIdentityIsExchanged) {
    const TemporaryFile token("a.b.c\n");
    const TemporaryFile file("[default]\naws_access_key_id=a\naws_secret_access_key=b\n");
    environment_["AWS_SHARED_CREDENTIALS_FILE"] = file.path();
    environment_["AWS_WEB_IDENTITY_TOKEN_FILE"] = token.path();
    EXPECT_EQ(create().need(clock_.now()), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("AWS_ROLE_ARN"));

    environment_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
    environment_["AWS_ENDPOINT_URL_STS"] = peer_url();
    peer_.then(ok(sts_answer("ASIA")));
    create();
    ASSERT_EQ(settle(), State::ready) << credentials_->error();
    EXPECT_EQ(credentials_->keys().access_key_id, "ASIA");
    EXPECT_EQ(credentials_->keys().session_token, "token");
    EXPECT_EQ(credentials_->keys().expires, clock_.unix_now() + seconds(3'600));
    const std::string request = peer_.requests().front();
    EXPECT_THAT(request, StartsWith("POST / HTTP/1.1\r\n"));
    EXPECT_THAT(request, testing::EndsWith(
                             "\r\n\r\nAction=AssumeRoleWithWebIdentity&Version=2011-06-15"
                             "&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&RoleSessionName=pg_outbox"
                             "&WebIdentityToken=a.b.c"));
}

TEST_F(AwsCredentialsTest, SaysWhatIsWrongWithAWebIdentity) {
    environment_["AWS_WEB_IDENTITY_TOKEN_FILE"] = "/there/is/no/such/file";
    environment_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
    environment_["AWS_ENDPOINT_URL_STS"] = peer_url();
    EXPECT_EQ(create().need(clock_.now()), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("\"/there/is/no/such/file\": No such file"));

    const TemporaryFile token("secret-token");
    environment_["AWS_WEB_IDENTITY_TOKEN_FILE"] = token.path();
    const std::string body =
        "<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredTokenException</Code>"
        "<Message>Token expired</Message></Error></ErrorResponse>";
    peer_.then({.bytes = "HTTP/1.1 400 x\r\nContent-Length: " + std::to_string(body.size()) +
                         "\r\n\r\n" + body});
    EXPECT_EQ(settle(), State::failed);
    EXPECT_EQ(credentials_->error(),
              "no AWS credentials: web identity: HTTP 400 ExpiredTokenException: Token expired");
}

TEST_F(AwsCredentialsTest, TheSharedFileComesAfterTheWebIdentity) {
    TemporaryFile file("[default]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n");
    environment_["AWS_SHARED_CREDENTIALS_FILE"] = file.path();
    environment_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = peer_url();
    EXPECT_EQ(create().need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "AKIA");

    // The file is read again when the keys are refused.
    file.write("[default]\naws_access_key_id = AKIB\naws_secret_access_key = secret\n");
    EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "AKIA");
    credentials_->rejected();
    EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "AKIB");
    EXPECT_EQ(peer_.connections(), 0);
}

TEST_F(AwsCredentialsTest, ANamedProfileMustExist) {
    const TemporaryFile file(
        "[a]\naws_access_key_id = A\naws_secret_access_key = s\n[b]\nregion = x");
    environment_["AWS_SHARED_CREDENTIALS_FILE"] = file.path();
    environment_["AWS_PROFILE"] = "a";
    EXPECT_EQ(create().need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "A");
    environment_["AWS_PROFILE"] = "c";
    EXPECT_EQ(create().need(clock_.now()), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("profile \"c\" does not exist in \"/tmp/"));

    // A profile in the user mapping means the file, and no other source.
    environment_["AWS_ACCESS_KEY_ID"] = "from the environment";
    environment_["AWS_SECRET_ACCESS_KEY"] = "secret";
    options_.needs_credentials_because = owner_is_no_superuser;
    options_.profile = "a";
    EXPECT_EQ(create().need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "A");
    options_.profile = "b";
    EXPECT_EQ(create().need(clock_.now()), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("profile \"b\" has no access key"));
    environment_["AWS_SHARED_CREDENTIALS_FILE"] = "/there/is/no/such/file";
    EXPECT_EQ(create().need(clock_.now()), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("No such file"));
}

TEST_F(AwsCredentialsTest, TheContainerComesAfterTheSharedFile) {
    const TemporaryFile token("Bearer x");
    environment_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = peer_url() + "/v2/keys?id=1";
    environment_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "not this one";
    environment_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = token.path();
    peer_.then(ok(json_keys("ASIA")));
    create();
    ASSERT_EQ(settle(), State::ready) << credentials_->error();
    EXPECT_EQ(credentials_->keys().access_key_id, "ASIA");
    const std::string request = peer_.requests().front();
    EXPECT_THAT(request, StartsWith("GET /v2/keys?id=1 HTTP/1.1\r\n"));
    EXPECT_THAT(request, HasSubstr("\r\nAuthorization: Bearer x\r\n"));

    environment_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = "";
    environment_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "two\r\nlines: x";
    create();
    EXPECT_EQ(settle(), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("more than one line"));
    EXPECT_EQ(peer_.requests().size(), 1u);
}

TEST_F(AwsCredentialsTest, AContainersTokenDoesNotLeaveTheMachine) {
    for (const char* host : {"127.0.0.1", "127.1.2.3", "localhost", "169.254.170.2",
                             "169.254.170.23", "fd00:ec2::23", "::1"})
        EXPECT_TRUE(is_container_host(host)) << host;
    for (const char* host : {"", "example.com", "169.254.169.254", "10.0.0.1", "127.1",
                             "localhost.example.com", "fd00:ec2::254", "2130706433"})
        EXPECT_FALSE(is_container_host(host)) << host;
    for (const char* uri : {"http://example.com/", "https://example.com/", "nonsense",
                            "http://127.0.0.1@example.com/"}) {
        environment_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = uri;
        EXPECT_EQ(create().need(clock_.now()), State::failed) << uri;
        EXPECT_THAT(credentials_->error(), HasSubstr("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
    }
}

TEST_F(AwsCredentialsTest, TheInstanceComesLast) {
    instance_gives("ASIA");
    create();
    ASSERT_EQ(settle(), State::ready) << credentials_->error();
    EXPECT_EQ(credentials_->keys().access_key_id, "ASIA");
    EXPECT_EQ(credentials_->keys().session_token, "token");
    const std::vector<std::string> requests = peer_.requests();
    ASSERT_EQ(requests.size(), 3u);
    EXPECT_THAT(requests[0], StartsWith("PUT /latest/api/token HTTP/1.1\r\n"));
    EXPECT_THAT(requests[0], HasSubstr("\r\nX-aws-ec2-metadata-token-ttl-seconds: 21600\r\n"));
    EXPECT_THAT(requests[1],
                StartsWith("GET /latest/meta-data/iam/security-credentials/ HTTP/1.1\r\n"));
    EXPECT_THAT(requests[1], HasSubstr("\r\nX-aws-ec2-metadata-token: session\r\n"));
    EXPECT_THAT(
        requests[2],
        StartsWith("GET /latest/meta-data/iam/security-credentials/my%40role HTTP/1.1\r\n"));
}

TEST_F(AwsCredentialsTest, SaysWhatIsWrongWithAnInstance) {
    struct Case {
        std::vector<Reply> replies;
        const char* error;
    };
    const std::vector<Case> cases = {
        {{status(403)}, "instance metadata: HTTP 403"},
        {{ok("two words")}, "the answer is not a token"},
        {{ok("session"), status(404)}, "this machine has no role"},
        {{ok("session"), ok("\n")}, "the answer names no role"},
        {{ok("session"), ok("role"), ok("{")}, "the answer is not JSON"},
        {{ok("session"), ok("role"), ok(R"({"Code":"AssumeRoleUnauthorizedAccess"})")},
         "the answer has no usable keys"},
        {{ok("session"), ok("role"), ok(json_keys("ASIA", "soon"))},
         "the answer has no usable keys"},
        {{ok("session"), ok("role"), ok(json_keys("two words"))}, "the answer has no usable keys"},
        {{ok("session"), ok("role"), ok(json_keys("ASIA", "2027-01-15T07:00:00Z"))},
         "have expired"},
    };
    for (const Case& test : cases) {
        for (const Reply& reply : test.replies)
            peer_.then(reply);
        create();
        EXPECT_EQ(settle(), State::failed);
        EXPECT_THAT(credentials_->error(), HasSubstr(test.error));
        EXPECT_THAT(credentials_->error(), testing::Not(HasSubstr("secret")));
    }
}

TEST_F(AwsCredentialsTest, ReportsMissingCredentials) {
    environment_["AWS_EC2_METADATA_DISABLED"] = "TRUE";
    EXPECT_EQ(create().need(clock_.now()), State::failed);
    EXPECT_EQ(credentials_->error(),
              "no AWS credentials: none in the user mapping, and none from the platform of the "
              "server");
}

TEST_F(AwsCredentialsTest, AFailedFetchIsTriedAgain) {
    peer_.then(status(500));
    create();
    ASSERT_EQ(settle(), State::failed);
    instance_gives("ASIA");
    ASSERT_EQ(settle(), State::ready) << credentials_->error();
}

TEST_F(AwsCredentialsTest, AnInvalidEndpointIsNotContacted) {
    for (const char* endpoint : {"nonsense", "ftp://127.0.0.1/", "http://"}) {
        environment_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = endpoint;
        create();
        EXPECT_EQ(settle(), State::failed) << endpoint;
    }
}

// ---------------------------------------------------------------------------------------------
// Expiry
// ---------------------------------------------------------------------------------------------

TEST_F(AwsCredentialsTest, AreRenewedWhileTheOldOnesAreStillUsed) {
    instance_gives("ASIA1");
    create();
    ASSERT_EQ(settle(), State::ready);
    clock_.advance(seconds(45 * 60 - 1));
    EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->deadline(), never) << "nobody needs them; nothing pends";

    clock_.advance(seconds(2));
    instance_gives("ASIA2", "2027-01-15T10:00:00Z");
    EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "ASIA1");
    finish_renewal(6);
    EXPECT_EQ(credentials_->keys().access_key_id, "ASIA2");
}

TEST_F(AwsCredentialsTest, AFailedRenewalDoesNoHarmWhileTheKeysAreValid) {
    instance_gives("ASIA1");
    create();
    ASSERT_EQ(settle(), State::ready);
    clock_.advance(seconds(50 * 60));
    peer_.then(status(500));
    EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
    finish_renewal(4);
    EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "ASIA1");

    // It is not tried again with every request, but soon.
    finish_renewal(4);
    clock_.advance(seconds(61));
    peer_.then(status(500));
    EXPECT_EQ(credentials_->need(clock_.now()), State::ready);
    finish_renewal(5);

    clock_.advance(seconds(10 * 60));
    instance_gives("ASIA2", "2027-01-15T11:00:00Z");
    EXPECT_EQ(credentials_->need(clock_.now()), State::pending) << "they have expired";
    ASSERT_EQ(settle(), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "ASIA2");
}

TEST_F(AwsCredentialsTest, RejectedKeysAreFetchedAgain) {
    instance_gives("ASIA1");
    create();
    ASSERT_EQ(settle(), State::ready);
    credentials_->rejected();
    EXPECT_EQ(credentials_->keys().access_key_id, "ASIA1") << "requests may still refer to them";
    instance_gives("ASIA2");
    ASSERT_EQ(settle(), State::ready);
    EXPECT_EQ(credentials_->keys().access_key_id, "ASIA2");
}

TEST_F(AwsCredentialsTest, GivesUpWhenThereIsNoAnswerInTime) {
    peer_.then({.bytes = ""});
    create();
    ASSERT_EQ(credentials_->need(clock_.now()), State::pending);
    for (int i = 0; i < 1'000 && peer_.requests().empty(); i++)
        step();
    EXPECT_LE(credentials_->deadline(), clock_.now() + seconds(2));
    clock_.advance(seconds(3));
    EXPECT_EQ(credentials_->step(clock_.now()), State::failed);
    EXPECT_THAT(credentials_->error(), HasSubstr("instance metadata: no answer within "));
}

TEST_F(AwsCredentialsTest, CanBeDestroyedDuringAFetch) {
    peer_.then({.bytes = ""});
    create();
    EXPECT_EQ(credentials_->need(clock_.now()), State::pending);
    credentials_.reset();
}

// ---------------------------------------------------------------------------------------------
// Files, times
// ---------------------------------------------------------------------------------------------

TEST(SharedFile, IsReadAsAmazonsToolsDo) {
    constexpr const char* text =
        "# a comment\n; another\naws_access_key_id = outside\n\n"
        "[ default ]\r\n  aws_access_key_id = nested\r\naws_access_key_id = AKIA\r\n"
        "AWS_SECRET_ACCESS_KEY=a/b+c=#d\r\n"
        "[other]\naws_session_token=t\nno equals\n=x\n[default]\nregion = eu-west-1";
    const Profile profile = find_profile(text, "default");
    EXPECT_TRUE(profile.found);
    EXPECT_EQ(profile.keys.access_key_id, "AKIA");
    EXPECT_EQ(profile.keys.secret_access_key, "a/b+c=#d");
    EXPECT_EQ(profile.keys.session_token, "");
    EXPECT_EQ(find_profile(text, "other").keys.session_token, "t");
    EXPECT_FALSE(find_profile(text, "def").found);
    EXPECT_FALSE(find_profile("", "default").found);
}

TEST(SharedFile, SurvivesAnyContent) {
    Mutations texts(
        {"[default]\naws_access_key_id = AKIA\naws_secret_access_key = s\n", "[", "]", "="},
        "[]=\n\r #;");
    int found = 0;
    for (int i = 0; i < 50'000; i++)
        found += find_profile(texts.next(), "default").found;
    EXPECT_GT(found, 1'000);
}

TEST(SmallFile, IsReadWholeOrNotAtAll) {
    const TemporaryFile file(std::string(64 * 1024, 'x'));
    EXPECT_EQ(read_small_file(file.path()).value().size(), 64u * 1024);
    const TemporaryFile large(std::string(64 * 1024 + 1, 'x'));
    EXPECT_THAT(read_small_file(large.path()).error().message, HasSubstr("File too large"));
    EXPECT_FALSE(read_small_file("/tmp"));
    EXPECT_FALSE(read_small_file(""));
    EXPECT_FALSE(read_small_file("/dev/null")) << "it is no regular file";
}

TEST(Expiration, IsATimeInUtc) {
    EXPECT_EQ(parse_expiration("1970-01-01T00:01:00Z"), seconds(60));
    EXPECT_EQ(parse_expiration("1970-01-01T00:01:00.123Z"), seconds(60));
    EXPECT_EQ(parse_expiration("1970-01-01T00:01:00+00:00"), seconds(60));
    for (const char* text :
         {"", "soon", "1970-01-01", "1970-01-01T00:01:00", "1970-01-01T00:01:00+01:00",
          "1970-01-01T00:01:00.", "1970-01-01T00:01:00.123", "1970-01-01T00:01:00Zx"})
        EXPECT_EQ(parse_expiration(text), std::nullopt) << text;
}

}  // namespace
}  // namespace outbox
