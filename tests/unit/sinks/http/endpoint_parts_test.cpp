// Parts of the sink with endpoints that need no server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/json.hpp"
#include "sinks/http/endpoint_directory.hpp"
#include "sinks/http/endpoint_health.hpp"
#include "sinks/http/endpoint_question.hpp"
#include "sinks/http/endpoint_secret.hpp"
#include "sinks/http/endpoint_url.hpp"

namespace outbox {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::unique_ptr<EndpointLane> lane(const std::string& name, const std::string& topics = "*") {
    EndpointRow row;
    row.name = row.secret_name = name;
    row.url = "http://h/";
    row.topics = topics;
    return std::make_unique<EndpointLane>(std::move(row),
                                          EndpointHealth(seconds(1), seconds(10), 1));
}

TEST(EndpointSecret, IsMadeFromTheMasterSecretAndAName) {
    const std::string master = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    // echo -n acme | openssl dgst -sha256 -mac HMAC -macopt hexkey:000102..1f -binary | base64
    EXPECT_EQ(endpoint_secret(master, "acme"),
              "whsec_xmZ+mtXA8z6B3M8QASVSWMVROnQFVKeTVqhVS3oJubQ=");
    EXPECT_NE(endpoint_secret(master, "acme"), endpoint_secret(master, "acme2"));
    EXPECT_EQ(endpoint_secret("nonsense", "acme"), "");
}

TEST(EndpointSecret, ThereIsOneForEachMasterSecretAndEachName) {
    const std::string one = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const std::string two = "whsec_ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";
    const std::string both[] = {one, two};
    const std::string only[] = {one, ""};
    EXPECT_THAT(endpoint_secrets(only, "a"), ElementsAre(endpoint_secret(one, "a")));
    EXPECT_THAT(endpoint_secrets(both, "a, b"),
                ElementsAre(endpoint_secret(one, "a"), endpoint_secret(two, "a"),
                            endpoint_secret(one, "b"), endpoint_secret(two, "b")));
    EXPECT_THAT(endpoint_secrets(both, ""), IsEmpty());
}

TEST(EndpointUrl, IsHttpWithAHostAndWithoutCredentials) {
    for (const char* url : {"http://h", "https://h:8443/x?y=z", "http://[::1]:80/"})
        EXPECT_EQ(wrong_endpoint_url(url), "") << url;
    for (const char* url :
         {"", "h", "ftp://h/", "http://", "http:///x", "http://u@h/", "http://u:p@h/",
          "http://h/\r\nX: y", "endpoints:", "file:///etc/passwd"})
        EXPECT_NE(wrong_endpoint_url(url), "") << url;
}

TEST(EndpointDirectory, FindsTheEndpointsOfATopic) {
    EndpointDirectory directory;
    EndpointLane& all = directory.add(lane("all"));
    EndpointLane& exact = directory.add(lane("exact", "a, b"));
    EndpointLane& pattern = directory.add(lane("pattern", "a*,a,*"));
    const auto of = [&](const char* topic) {
        EndpointDirectory::Lanes lanes = directory.of_topic(topic);
        EXPECT_EQ(lanes, directory.of_topic(topic)) << "from the cache";
        return std::set<EndpointLane*>(lanes.begin(), lanes.end());
    };
    EXPECT_EQ(of("a"), (std::set{&all, &exact, &pattern}));
    EXPECT_EQ(directory.of_topic("a").size(), 3u) << "each once";
    EXPECT_EQ(of("b"), (std::set{&all, &exact, &pattern}));
    directory.update(pattern, std::move(lane("pattern", "ab*")->row));
    EXPECT_EQ(of("b"), (std::set{&all, &exact}));
    EXPECT_EQ(of("abc"), (std::set{&all, &pattern}));
    const std::unique_ptr<EndpointLane> removed = directory.remove("all");
    EXPECT_EQ(of("c"), (std::set<EndpointLane*>{}));
    EXPECT_EQ(directory.size(), 2u);
    EXPECT_EQ(directory.find("all"), nullptr);
    EXPECT_EQ(directory.find("exact"), &exact);
}

TEST(EndpointDirectory, HasRoomForALimitedNumber) {
    EndpointDirectory directory;
    while (directory.size() < max_endpoints)
        directory.add(lane(std::to_string(directory.size())));
    EXPECT_FALSE(directory.has_room_for(lane("another")->row));
    EXPECT_TRUE(directory.has_room_for(lane("7")->row)) << "in its own place";
    const std::unique_ptr<EndpointLane> removed = directory.remove("8");
    EXPECT_TRUE(directory.has_room_for(lane("another")->row));
}

TEST(EndpointDirectory, HasRoomForALimitedSize) {
    EndpointDirectory directory;
    const std::string large(1'000'000, 't');
    while (directory.has_room_for(lane(std::to_string(directory.size()), large)->row))
        directory.add(lane(std::to_string(directory.size()), large));
    EXPECT_EQ(directory.size(), EndpointDirectory::max_bytes / 1'000'100);
    EXPECT_TRUE(directory.has_room_for(lane("0", large)->row)) << "in its own place";
    EXPECT_FALSE(directory.has_room_for(lane("0", large + large)->row));
    EXPECT_FALSE(directory.has_room_for(lane("0", std::string(100'000, ','))->row))
        << "a topic costs more than its text";
    directory.update(*directory.find("1"), std::move(lane("1")->row));
    EXPECT_TRUE(directory.has_room_for(lane("another", large)->row));
}

TEST(EndpointDirectory, ForgetsTopicsWhenThereAreTooMany) {
    EndpointDirectory directory;
    EndpointLane& all = directory.add(lane("all"));
    for (int i = 0; i < 25'000; i++)
        ASSERT_THAT(directory.of_topic("topic" + std::to_string(i)), ElementsAre(&all));
}

TEST(EndpointHealth, WaitsLongerWithEachFailureUntilItWorks) {
    EndpointHealth health(seconds(1), seconds(4), 7);
    EXPECT_FALSE(health.is_failing());
    Micros now = seconds(100);
    for (const Micros longest : {seconds(1), seconds(2), seconds(4), seconds(4)}) {
        health.failed(now, 1, now, 0, "x");
        EXPECT_GT(health.not_before(), now);
        EXPECT_LE(health.not_before(), now + longest);
        now = health.not_before();
    }
    EXPECT_EQ(health.failing_since(), seconds(100));
    EXPECT_EQ(health.failures(), 4u);
    health.failed(now, 1, seconds(100), 0, "sent before the last failure");
    EXPECT_EQ(health.failures(), 4u);
    health.failed(now, 1, now, seconds(60), "x");
    EXPECT_GE(health.not_before(), now + seconds(60)) << "the endpoint asked for it";
    health.worked(1);
    EXPECT_FALSE(health.is_failing());
    EXPECT_EQ(health.not_before(), 0);
}

TEST(EndpointHealth, BlamesAnEventThatFailsWhileOthersAreTaken) {
    EndpointHealth health(seconds(1), seconds(4), 7);
    EXPECT_FALSE(health.blames_event(1, false));
    EXPECT_FALSE(health.blames_event(1, false)) << "the endpoint may be down";
    health.worked(2);
    EXPECT_FALSE(health.blames_event(3, false));
    EXPECT_TRUE(health.blames_event(1, false));
    health.worked(3);
    EXPECT_FALSE(health.blames_event(3, false)) << "it was taken meanwhile";
}

TEST(EndpointHealth, BlamesTheOnlyEventAfterMoreFailures) {
    EndpointHealth health(seconds(1), seconds(4), 7);
    for (int i = 1; i < 10; i++)
        EXPECT_FALSE(health.blames_event(1, true));
    EXPECT_TRUE(health.blames_event(1, true));
}

TEST(EndpointQuestion, IsJson) {
    EndpointQuestion question;
    std::unique_ptr<EndpointLane> one = lane("a\"b");
    Event event;
    event.xid = 17;
    event.position = 4;
    EventSource source;
    one->copies.push_back({.event = &event, .source = &source});
    one->settled = {1, 2};
    one->refused = {{.xid = 9, .position = 3, .error = "HTTP 400: \"\\", .permanent = true}};
    one->gone = "HTTP 410";
    one->health.failed(1, 1'000'000, 1, 0, "down");
    question.fall_back(*one);
    question.settled(*one);
    question.refused(*one);
    question.fails(*one, 5);
    question.works(*one);
    question.gone(*one);
    question.fetch(*one);
    EndpointPlace place{.done = {10, 12, {11}}, .upto = Snapshot{20, 20, {}}, .position = 7};
    const std::string text = question.text("5:5:", place);
    const std::optional<Json::Value> json = parse_json(text);
    ASSERT_TRUE(json) << text;
    const auto& j = *json;
    EXPECT_EQ(j["place"]["done"].asString(), "10:12:11");
    EXPECT_EQ(j["place"]["upto"].asString(), "20:20:");
    EXPECT_EQ(j["place"]["position"].asInt64(), 7);
    EXPECT_EQ(j["known"].asString(), "5:5:");
    EXPECT_EQ(j["fall_back"][0]["endpoint"].asString(), "a\"b");
    EXPECT_EQ(j["fall_back"][0]["xids"][0].asInt64(), 17);
    EXPECT_EQ(j["fall_back"][0]["positions"][0].asInt64(), 4);
    EXPECT_EQ(j["settled"][0]["positions"].size(), 2u);
    EXPECT_EQ(j["refused"][0]["error"].asString(), "HTTP 400: \"\\");
    EXPECT_TRUE(j["refused"][0]["permanent"].asBool());
    EXPECT_EQ(j["failing"][0]["since"].asInt64(), 1'000'000);
    EXPECT_EQ(j["failing"][0]["next_attempt"].asInt64(), 5);
    EXPECT_TRUE(j["failing"][1]["since"].isNull());
    EXPECT_EQ(j["gone"][0]["error"].asString(), "HTTP 410");
    EXPECT_EQ(j["fetch"][0].asString(), "a\"b");
    EXPECT_EQ(EndpointQuestion().text("", {}), R"({"place":{"done":"1:1:","position":0}})");
}

}  // namespace
}  // namespace outbox
