// The SQS source: options, and what needs no service.
#include "inbox/sources/sqs.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

#include "inbox/error.hpp"
#include "unit/scripted_peer.hpp"

namespace inbox {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

SqsOptions options() {
    return {
        .queue = "q", .region = "eu-west-1", .access_key_id = "any", .secret_access_key = "any"};
}

TEST(SqsSourceTest, OptionsThatMakeNoSense) {
    unsetenv("AWS_REGION");
    unsetenv("AWS_DEFAULT_REGION");
    EXPECT_NO_THROW(SqsSource{options()});
    for (const auto& [spoil, complaint] :
         std::initializer_list<std::pair<void (*)(SqsOptions&), const char*>>{
             {[](SqsOptions& o) { o.queue = ""; }, "no queue is given"},
             {[](SqsOptions& o) { o.region = ""; }, "no region is given"},
             {[](SqsOptions& o) { o.region = "a b"; }, "region is not a valid name"},
             {[](SqsOptions& o) { o.account = "1234"; }, "account must be twelve digits"},
             {[](SqsOptions& o) { o.queue = "http://127.0.0.1/"; }, "is not the URL of a queue"},
             {[](SqsOptions& o) { o.pollers = 0; }, "pollers must be 1 to 100"},
             {[](SqsOptions& o) { o.visibility = seconds{1}; }, "visibility must be"},
             {[](SqsOptions& o) { o.poll = seconds{21}; }, "poll must be"},
             {[](SqsOptions& o) { o.retry_base = milliseconds{0}; }, "retry_base must be"}}) {
        SqsOptions spoiled = options();
        spoil(spoiled);
        try {
            SqsSource source(spoiled);
            ADD_FAILURE() << complaint;
        } catch (const std::invalid_argument& error) {
            EXPECT_THAT(error.what(), HasSubstr(complaint));
        }
    }
}

TEST(SqsSourceTest, CannotGoBack) {
    SqsSource source(options());
    try {
        source.seek(Time{});
        ADD_FAILURE();
    } catch (const SourceError& error) {
        EXPECT_FALSE(error.transient());
        EXPECT_THAT(error.what(), HasSubstr("outbox.replay()"));
    }
}

TEST(SqsSourceTest, WithoutKeysNothingCanBeReceived) {
    const outbox::ScriptedPeer peer;
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE",
                             "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                             "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_WEB_IDENTITY_TOKEN_FILE"})
        unsetenv(name);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    SqsOptions without = options();
    without.access_key_id = without.secret_access_key = "";
    without.endpoint = peer.url().substr(0, peer.url().rfind('/'));
    SqsSource source(without);
    try {
        source.open();
        ADD_FAILURE();
    } catch (const SourceError& error) {
        EXPECT_TRUE(error.transient()) << "they may come";
        EXPECT_THAT(error.what(), HasSubstr("no AWS credentials: none in the user mapping"));
    }
    EXPECT_TRUE(peer.requests().empty());
}

}  // namespace
}  // namespace inbox
