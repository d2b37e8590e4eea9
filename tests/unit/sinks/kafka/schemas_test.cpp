// Frames in front of payloads, and what a scripted schema registry is asked for.
#include "sinks/kafka/schemas.hpp"

#include <gmock/gmock.h>
#include <poll.h>

#include <deque>

#include "core/base64.hpp"
#include "net/transport.hpp"
#include "unit/drive.hpp"
#include "unit/sample_event.hpp"
#include "unit/scripted_peer.hpp"

namespace outbox {
namespace {

using State = Schema::State;
using testing::HasSubstr;
using testing::StartsWith;

std::string bytes(std::initializer_list<int> list) {
    return std::string(list.begin(), list.end());
}

TEST(Frame, HasTheIdInFourBytes) {
    auto schema = std::make_shared<Schema>();
    schema->id = 0x01020304;
    EXPECT_EQ(frame_of({schema}), bytes({0, 1, 2, 3, 4}));
    schema->id = 0xff;
    EXPECT_EQ(frame_of({schema, encoded_indexes("0")}), bytes({0, 0, 0, 0, 0xff, 0}));
}

TEST(Frame, HasThePathToAMessageOfProtobuf) {
    EXPECT_EQ(encoded_indexes("0"), bytes({0})) << "the short form";
    EXPECT_EQ(encoded_indexes("1"), bytes({2, 2}));
    EXPECT_EQ(encoded_indexes("0,0"), bytes({4, 0, 0}));
    EXPECT_EQ(encoded_indexes(" 2 , 100 "), bytes({4, 4, 0xc8, 1}));
    for (const char* bad : {"", ",", "1,", ",1", "x", "-1", "1 2", "1.5", "99999999999"})
        EXPECT_EQ(encoded_indexes(bad), "") << bad;
    std::string long_list = "1";
    for (int i = 0; i < 32; i++)
        long_list += ",1";
    EXPECT_EQ(encoded_indexes(long_list), "");
}

Reply answer(const std::string& body, const std::string& status = "200 OK") {
    return {.bytes = "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
                     "\r\n\r\n" + body};
}

class Registry : public testing::Test {
  protected:
    Registry() {
        initialize_curl();
        const std::string url = registry_.url();
        options_.schemas.registry = url.substr(0, url.rfind('/')) + "/api";
        options_.https.allowed_hosts = AllowedHosts::parse("127.0.0.1").value();
        options_.source = "shop";
    }

    SampleEvent& add() {
        batch_.events.push_back(&samples_.emplace_back().event);
        return samples_.back();
    }

    // Schemas of the batch, which is emptied.
    std::vector<SchemaOfEvent> found() {
        if (schemas_ == nullptr)
            schemas_ = std::make_unique<Schemas>(options_, clock_);
        const std::vector<SchemaOfEvent> found = schemas_->of(batch_, "videos");
        const Micros give_up = clock_.now() + patience;
        while (are_pending(found) && clock_.now() < give_up) {
            pollfd watched{schemas_->descriptor(), POLLIN, 0};
            poll(&watched, 1, 10);
            schemas_->step(clock_.now());
        }
        batch_.events.clear();
        return found;
    }

    const Schema& found_one() {
        add();
        kept_ = found();
        return *kept_.front().schema;
    }

    ScriptedPeer registry_;
    SystemClock clock_;
    KafkaOptions options_;
    std::deque<SampleEvent> samples_;
    Batch batch_;
    std::unique_ptr<Schemas> schemas_;
    std::vector<SchemaOfEvent> kept_;
};

TEST_F(Registry, IsAskedOnceForASubject) {
    registry_.then(answer(R"({"subject":"videos-value","version":3,"id":7,"schema":"\"int\""})"));
    add(), add();
    for (const SchemaOfEvent& one : found())
        EXPECT_EQ(frame_of(one), bytes({0, 0, 0, 0, 7}));
    EXPECT_EQ(found_one().id, 7u);
    ASSERT_EQ(registry_.requests().size(), 1u);
    EXPECT_THAT(registry_.requests()[0],
                StartsWith("GET /api/subjects/videos-value/versions/latest HTTP/1.1\r\n"));
    EXPECT_THAT(registry_.requests()[0], testing::Not(HasSubstr("Authorization")));
}

TEST_F(Registry, SubjectsAreMadeFromATemplate) {
    options_.schemas.subject = TextTemplate::parse("{database}/{event_type}").value();
    options_.schemas.user = "key";
    options_.schemas.password = "s3cret";
    registry_.then(answer(R"({"id":1})"));
    EXPECT_EQ(found_one().state, State::known);
    std::string basic;
    append_base64(basic, "key:s3cret");
    EXPECT_THAT(registry_.requests()[0], StartsWith("GET /api/subjects/shop%2FVideoUpdated/"));
    EXPECT_THAT(registry_.requests()[0], HasSubstr("Authorization: Basic " + basic + "\r\n"));
}

TEST_F(Registry, ASubjectThatIsMissingIsAskedForAgain) {
    registry_.then(answer(R"({"error_code":40401,"message":"Subject not found"})", "404 x"));
    EXPECT_EQ(found_one().state, State::unknown);
    EXPECT_EQ(kept_.front().schema->error,
              "subject \"videos-value\" is not in the schema registry");
    registry_.then(answer(R"({"id":1})"));
    EXPECT_EQ(found_one().state, State::known);
}

TEST_F(Registry, AnErrorOfTheRegistryIsNotAFaultOfTheEvent) {
    for (const Reply& reply :
         {answer("", "503 x"), answer("", "401 x"), answer("", "404 x"), answer("[]"),
          answer(R"({"id":"7"})"), answer(R"({"id":-1})"), answer(R"({"id":99999999999})"),
          Reply{.bytes = "", .close = true}}) {
        registry_.then(reply);
        EXPECT_EQ(found_one().state, State::failed) << reply.bytes;
        EXPECT_THAT(failed_one(kept_)->error,
                    StartsWith("schema registry, subject \"videos-value\": "));
    }
}

TEST_F(Registry, ItsHostMustBeAllowed) {
    options_.https.allowed_hosts = AllowedHosts::parse("example.com").value();
    EXPECT_EQ(found_one().state, State::failed);
    EXPECT_THAT(kept_.front().schema->error, HasSubstr("is not allowed"));
    EXPECT_EQ(registry_.connections(), 0);
}

TEST_F(Registry, OfManySubjectsIsNotKeptForEver) {
    options_.schemas.subject = TextTemplate::parse("{event_type}").value();
    registry_.answer_with([](const std::string&) { return answer(R"({"id":5})"); });
    std::deque<std::string> types;
    for (int i = 0; i < 2500; i++)
        add().event.event_type = types.emplace_back("type-" + std::to_string(i));
    const std::vector<SchemaOfEvent> all = found();
    ASSERT_EQ(all.size(), 2500u);
    for (const SchemaOfEvent& one : all)
        EXPECT_EQ(one.schema->state, State::known);
}

TEST_F(Registry, IsNotNeededForEventsThatHaveAnId) {
    options_.schemas.id_header = "schema-id";
    options_.schemas.protobuf = true;
    options_.schemas.index_header = "index";
    registry_.then(answer(R"({"id":9})"));
    add().add("schema-id", "258");
    add().add("schema-id", "1", Header::Kind::literal);
    samples_.back().add("index", "1,0");
    add();
    add().event.has_payload = false;
    const std::vector<SchemaOfEvent> all = found();
    EXPECT_EQ(frame_of(all[0]), bytes({0, 0, 0, 1, 2, 0}));
    EXPECT_EQ(frame_of(all[1]), bytes({0, 0, 0, 0, 1, 4, 2, 0}));
    EXPECT_EQ(frame_of(all[2]), bytes({0, 0, 0, 0, 9, 0}));
    EXPECT_EQ(all[3].schema, nullptr);
    EXPECT_EQ(registry_.requests().size(), 1u);
}

TEST_F(Registry, AHeaderMustHaveAnId) {
    options_.schemas.registry.clear();
    options_.schemas.id_header = "schema-id";
    options_.schemas.protobuf = true;
    options_.schemas.index_header = "index";
    add();
    add().add("schema-id", "seven");
    add().add("schema-id", "99999999999");
    add().add("schema-id", "7");
    samples_.back().add("index", "first");
    const std::vector<SchemaOfEvent> all = found();
    for (const SchemaOfEvent& one : all)
        EXPECT_EQ(one.schema->state, State::invalid);
    EXPECT_EQ(all[0].schema->error, "header \"schema-id\" of the event is not the id of a schema");
    EXPECT_THAT(all[3].schema->error, HasSubstr("header \"index\""));
}

}  // namespace
}  // namespace outbox
