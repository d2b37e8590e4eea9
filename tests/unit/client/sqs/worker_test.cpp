// The SQS source's thread, against a scripted service: claims that are kept, settled and given back.
#include "sqs/worker.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <deque>
#include <map>
#include <thread>

#include "inbox/error.hpp"
#include "net/json.hpp"
#include "net/transport.hpp"
#include "unit/scripted_peer.hpp"

namespace inbox::sqs {
namespace {

using outbox::Reply;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// For what a test expects to happen.
constexpr milliseconds patience{120'000};

constexpr const char* get_url = "GetQueueUrl";
constexpr const char* receive_message = "ReceiveMessage";
constexpr const char* delete_batch = "DeleteMessageBatch";
constexpr const char* change_batch = "ChangeMessageVisibilityBatch";

Reply http(int status, const std::string& body, const std::string& headers = "") {
    return {.bytes = "HTTP/1.1 " + std::to_string(status) + " x\r\n" + headers +
                     "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body};
}
Reply error(int status, const std::string& code) {
    return http(status, R"({"__type":"com.amazonaws.sqs#)" + code + R"(","message":"no"})");
}
Reply reset() {
    return {.bytes = "", .close = true};
}

struct Request {
    std::string action;
    Json::Value body;

    std::vector<std::string> entries(const char* member) const {
        std::vector<std::string> all;
        for (const Json::Value& entry : body["Entries"])
            all.push_back(entry[member].asString());
        return all;
    }
    std::vector<std::string> handles() const { return entries("ReceiptHandle"); }
};

Request parsed(const std::string& request) {
    static constexpr std::string_view target = "X-Amz-Target: AmazonSQS.";
    const std::size_t begin = request.find(target) + target.size();
    return {
        request.substr(begin, request.find('\r', begin) - begin),
        outbox::parse_json(request.substr(request.find("\r\n\r\n") + 4)).value_or(Json::Value())};
}

// An answer to a request with entries: those named fail.
Reply entries_answer(const Request& request, const std::map<int, std::string>& failing,
                     bool for_good) {
    Json::Value answer;
    answer["Successful"] = answer["Failed"] = Json::Value(Json::arrayValue);
    for (int i = 0; i < static_cast<int>(request.body["Entries"].size()); i++) {
        Json::Value entry;
        entry["Id"] = request.body["Entries"][i]["Id"];
        if (const auto found = failing.find(i); found != failing.end()) {
            entry["Code"] = found->second;
            entry["SenderFault"] = for_good;
            answer["Failed"].append(entry);
        } else {
            answer["Successful"].append(entry);
        }
    }
    return http(200, answer.toStyledString());
}

class SqsWorkerTest : public testing::Test {
  protected:
    SqsWorkerTest() {
        outbox::initialize_curl();
        peer.answer_with([this](const std::string& request) { return answer(parsed(request)); });
    }

    Worker& make(bool fifo = false, std::size_t pollers = 1, seconds visibility = seconds{3600}) {
        const std::string endpoint = peer.url().substr(0, peer.url().rfind('/'));
        Place place{
            .aws = {.region = "eu-west-1",
                    .account = "",
                    .endpoint = endpoint,
                    .access_key_id = "any",
                    .secret_access_key = "s3cret",
                    .session_token = "",
                    .profile = ""},
            .transport = {.allowed_hosts = std::nullopt, .ca_file = "", .max_connections = pollers},
            .queue = fifo ? "q.fifo" : "q",
            .queue_url = "",
            .account = "",
            .subscription = "sqs://eu-west-1/q",
            .fifo = fifo};
        return worker.emplace(std::move(place),
                              Times{.visibility = visibility,
                                    .poll = seconds{20},
                                    .retry_base = milliseconds{1},
                                    .retry_max = milliseconds{2}},
                              pollers);
    }
    void open() {
        worker->open([this](Level, const std::string& message) {
            const std::lock_guard lock(mutex);
            logged.push_back(message);
        });
    }

    // -- The service --------------------------------------------------------------------------------

    // Under the peer's mutex.
    std::optional<Reply> answer(const Request& request) {
        const std::lock_guard lock(mutex);
        auto& replies = scripted[request.action];
        if (!replies.empty()) {
            const auto reply = replies.front();
            replies.pop_front();
            return reply(request);
        }
        if (held == request.action)
            return std::nullopt;
        if (request.action == get_url)
            return http(200, R"({"QueueUrl":"http://127.0.0.1/123456789012/q"})");
        if (request.action == receive_message)
            return std::nullopt;  // there is none: it waits for one
        return entries_answer(request, {}, false);
    }
    using Script = std::function<std::optional<Reply>(const Request&)>;
    void then(const std::string& action, Script script) {
        {
            const std::lock_guard lock(mutex);
            scripted[action].push_back(std::move(script));
        }
        peer.ask_again();
    }
    void then(const std::string& action, Reply reply, int times = 1) {
        for (int i = 0; i < times; i++)
            then(action, [reply](const Request&) { return reply; });
    }
    void hold(const std::string& action) {
        const std::lock_guard lock(mutex);
        held = action;
    }

    // A poll gets these; `group`: of a FIFO queue.
    void offer(const std::vector<std::string>& handles, const std::string& group = "") {
        Json::Value body(Json::objectValue);
        for (const std::string& handle : handles) {
            Json::Value message;
            message["MessageId"] = "id-" + handle;
            message["ReceiptHandle"] = handle;
            message["Body"] = handle;
            if (!group.empty())
                message["Attributes"]["MessageGroupId"] = group;
            body["Messages"].append(message);
        }
        then(receive_message, http(200, body.toStyledString()));
    }

    // -- What is seen -------------------------------------------------------------------------------

    static std::vector<Request> with(const std::vector<std::string>& all,
                                     const std::string& action) {
        std::vector<Request> found;
        for (const std::string& text : all)
            if (Request request = parsed(text); request.action == action)
                found.push_back(std::move(request));
        return found;
    }
    std::vector<Request> requests(const std::string& action) const {
        return with(peer.requests(), action);
    }
    std::vector<Request> wait_for(const std::string& action, std::size_t count) const {
        for (;;) {
            const std::vector<std::string> all = peer.requests();
            std::vector<Request> found = with(all, action);
            if (found.size() >= count)
                return found;
            if (!peer.wait_for_more(all.size(), patience)) {
                ADD_FAILURE() << "the service got " << found.size() << " of " << count << ' '
                              << action;
                std::abort();
            }
        }
    }
    std::vector<std::string> log() const {
        const std::lock_guard lock(mutex);
        return logged;
    }

    std::vector<Delivery> receive(std::size_t count, std::size_t most = 100) {
        std::vector<Delivery> all;
        const auto until = std::chrono::steady_clock::now() + patience;
        while (all.size() < count && std::chrono::steady_clock::now() < until)
            std::ranges::move(worker->receive(most, milliseconds{1000}), std::back_inserter(all));
        EXPECT_EQ(all.size(), count);
        return all;
    }
    static std::vector<std::string> handles(const std::vector<Delivery>& deliveries) {
        std::vector<std::string> all;
        for (const Delivery& delivery : deliveries)
            all.push_back(delivery.handle);
        return all;
    }
    SourceError error_of_receive() {
        try {
            worker->receive(10, patience);
        } catch (const SourceError& error) {
            return error;
        }
        ADD_FAILURE() << "receive() throws nothing";
        return {"nothing", false};
    }

    mutable std::mutex mutex;
    std::map<std::string, std::deque<Script>> scripted;
    std::string held;
    std::vector<std::string> logged;
    outbox::ScriptedPeer peer;
    std::optional<Worker> worker;  // ends before the peer
};

std::vector<std::string> numbered(int count, const std::string& prefix = "h") {
    std::vector<std::string> handles;
    for (int i = 0; i < count; i++)
        handles.push_back(prefix + std::to_string(i));
    return handles;
}

// ------------------------------------------------------------------------------------------------
// Receiving
// ------------------------------------------------------------------------------------------------

TEST_F(SqsWorkerTest, FindsTheQueueAndWaitsForMessages) {
    make();
    open();
    offer({"h1", "h2"});
    const auto deliveries = receive(2);
    EXPECT_THAT(handles(deliveries), ElementsAre("h1", "h2"));
    EXPECT_EQ(deliveries[0].source, "sqs://eu-west-1/q");
    EXPECT_EQ(deliveries[0].event.payload, "h1");
    EXPECT_EQ(requests(get_url)[0].body["QueueName"], "q");
    const Json::Value poll = requests(receive_message)[0].body;
    EXPECT_EQ(poll["QueueUrl"], "http://127.0.0.1/123456789012/q");
    EXPECT_EQ(poll["MaxNumberOfMessages"], 10);
    EXPECT_EQ(poll["WaitTimeSeconds"], 20);
    EXPECT_EQ(poll["VisibilityTimeout"], 3600);
    EXPECT_FALSE(poll.isMember("ReceiveRequestAttemptId"));
}

TEST_F(SqsWorkerTest, PollsGoSideBySideAndFetchNoMoreThanIsWanted) {
    make(false, 3);
    open();
    wait_for(receive_message, 3);
    for (const char* prefix : {"a", "b", "c"})
        offer(numbered(10, prefix));
    auto deliveries = receive(1, 1);  // 29 are with the source, so there is no room for ten
    worker->ack(deliveries);
    wait_for(delete_batch, 1);
    EXPECT_THAT(requests(receive_message), SizeIs(3));
    receive(29);
    wait_for(receive_message, 6);
}

// It was not settled in time: the new receipt handle is the one that counts.
TEST_F(SqsWorkerTest, AMessageThatComesAgainHasAnotherHandle) {
    make();
    open();
    offer({"first"});
    const auto first = receive(1);
    offer({"second"});
    worker->ack(receive(1));
    EXPECT_THAT(wait_for(delete_batch, 1)[0].handles(), ElementsAre("second"));
    worker->ack(first);
    EXPECT_THAT(wait_for(delete_batch, 2)[1].handles(), ElementsAre("first"));
}

TEST_F(SqsWorkerTest, AHandleIsHandedOutOnce) {
    make(false, 2);
    open();
    offer({"h1"});
    offer({"h1", "h2"});
    EXPECT_THAT(handles(receive(2)), ElementsAre("h1", "h2"));
}

// ------------------------------------------------------------------------------------------------
// Settling
// ------------------------------------------------------------------------------------------------

TEST_F(SqsWorkerTest, WhatIsAcknowledgedIsDeletedTenAtATime) {
    make(false, 3);
    open();
    wait_for(receive_message, 3);
    offer(numbered(10, "a"));
    offer(numbered(10, "b"));
    offer(numbered(5, "c"));
    worker->ack(receive(25));
    std::vector<std::size_t> sizes;
    for (const Request& request : wait_for(delete_batch, 3))
        sizes.push_back(request.handles().size());
    EXPECT_THAT(sizes, testing::UnorderedElementsAre(10, 10, 5));
    worker->close(patience);
    EXPECT_THAT(requests(change_batch), IsEmpty());
}

TEST_F(SqsWorkerTest, WhatIsGivenBackIsVisibleAtOnce) {
    make();
    open();
    offer({"h1"});
    worker->nack(receive(1));
    const Request request = wait_for(change_batch, 1)[0];
    EXPECT_THAT(request.handles(), ElementsAre("h1"));
    EXPECT_THAT(request.entries("VisibilityTimeout"), ElementsAre("0"));
    worker->close(patience);
    EXPECT_THAT(requests(delete_batch), IsEmpty());
}

// What has been received behind it must not be handled before it.
TEST_F(SqsWorkerTest, GivingBackAMessageGivesBackLaterOnesOfItsGroup) {
    make(true, 2);
    open();
    wait_for(receive_message, 2);
    offer({"a1", "a2", "a3"}, "a");
    const auto first = receive(1, 1);
    offer({"b1"}, "b");
    worker->nack(first);
    EXPECT_THAT(wait_for(change_batch, 1)[0].handles(), ElementsAre("a1", "a2", "a3"));
    EXPECT_THAT(handles(receive(1)), ElementsAre("b1"));
}

TEST_F(SqsWorkerTest, OnlyTheDeletionThatFailedIsRepeated) {
    make();
    open();
    then(delete_batch, [](const Request& r) {
        return entries_answer(r, {{1, "InternalError"}}, false);
    });
    offer({"h1", "h2", "h3"});
    worker->ack(receive(3));
    EXPECT_THAT(wait_for(delete_batch, 2)[1].handles(), ElementsAre("h2"));
    worker->close(patience);
    EXPECT_THAT(requests(delete_batch), SizeIs(2));
    EXPECT_THAT(log(), IsEmpty());
}

// SQS says so of throttled entries too, so the code counts.
TEST_F(SqsWorkerTest, ADeletionThatFailsByTheSendersFaultIsRepeatedIfItMaySucceed) {
    make();
    open();
    const std::vector<std::string> codes{"RequestThrottled", "KmsThrottled",
                                         "KMS.ThrottlingException", "AccessDenied", "ExpiredToken"};
    for (const std::string& code : codes)
        then(delete_batch, [code](const Request& r) {
            return entries_answer(r, {{0, code}}, true);
        });
    offer({"h1"});
    worker->ack(receive(1));
    for (const Request& request : wait_for(delete_batch, codes.size() + 1))
        EXPECT_THAT(request.handles(), ElementsAre("h1"));
    worker->close(patience);
    EXPECT_THAT(log(), IsEmpty());
}

TEST_F(SqsWorkerTest, ADeletionThatTheAnswerLeavesOutIsRepeated) {
    make();
    open();
    then(delete_batch, http(200, R"({"Successful":[{"Id":"0"}],"Failed":[]})"));
    offer({"h1", "h2"});
    worker->ack(receive(2));
    EXPECT_THAT(wait_for(delete_batch, 2)[1].handles(), ElementsAre("h2"));
}

TEST_F(SqsWorkerTest, ADeletionThatIsRefusedIsReportedAndNotRepeated) {
    make();
    open();
    then(delete_batch, [](const Request& r) {
        return entries_answer(r, {{0, "ReceiptHandleIsInvalid"}}, true);
    });
    offer({"h1", "h2"});
    worker->ack(receive(2));
    wait_for(delete_batch, 1);
    worker->close(patience);
    EXPECT_THAT(requests(delete_batch), SizeIs(1));
    EXPECT_THAT(log(), ElementsAre(HasSubstr("1 messages could not be deleted, and will come "
                                             "again: ReceiptHandleIsInvalid")));
}

struct Fault {
    const char* name;
    Reply reply;
};
void PrintTo(const Fault& fault, std::ostream* out) {
    *out << fault.name;
}

class SqsFault : public SqsWorkerTest, public testing::WithParamInterface<Fault> {};

TEST_P(SqsFault, OfADeletionIsRepeated) {
    make();
    open();
    then(delete_batch, GetParam().reply, 2);
    offer({"h1"});
    worker->ack(receive(1));
    for (const Request& request : wait_for(delete_batch, 3))
        EXPECT_THAT(request.handles(), ElementsAre("h1"));
    worker->close(patience);
    EXPECT_THAT(requests(delete_batch), SizeIs(3));
    EXPECT_THAT(log(), testing::Not(IsEmpty()));  // an idle connection that ends is no error
    EXPECT_THAT(log(), Each(HasSubstr("cannot settle messages of queue \"q\"")));
}

TEST_P(SqsFault, OfAPollIsRepeated) {
    make();
    then(receive_message, GetParam().reply, 5);
    open();
    wait_for(receive_message, 6);
    offer({"h1"});
    EXPECT_THAT(handles(receive(1)), ElementsAre("h1"));
    EXPECT_THAT(log(), SizeIs(5));
    EXPECT_THAT(log(), Each(HasSubstr("cannot receive from queue \"q\"")));
}

INSTANTIATE_TEST_SUITE_P(Sqs, SqsFault,
                         testing::Values(Fault{"reset", reset()},
                                         Fault{"error", error(500, "InternalError")},
                                         Fault{"throttled", error(400, "RequestThrottled")},
                                         Fault{"slow_down", error(429, "SlowDown")},
                                         Fault{"nonsense", http(200, "<html>")},
                                         Fault{"no_object", http(200, "[1]")}),
                         [](const auto& info) { return std::string(info.param.name); });

// What could not be settled would come as what it is not.
TEST_F(SqsWorkerTest, NothingIsTakenFromAnAnswerThatIsMalformed) {
    make();
    then(receive_message, http(200, R"({"Messages":{"ReceiptHandle":"h0"}})"));
    then(receive_message, http(200, R"({"Messages":[{"ReceiptHandle":"h0"},{"Body":"x"}]})"));
    offer({"h1"});
    open();
    EXPECT_THAT(handles(receive(1)), ElementsAre("h1"));
}

// ------------------------------------------------------------------------------------------------
// Claims. The shortest visibility is a second, of which half has to pass.
// ------------------------------------------------------------------------------------------------

TEST_F(SqsWorkerTest, WhatIsHeldIsExtendedUntilItIsSettled) {
    make(false, 1, seconds{1});
    open();
    offer({"in hand", "with the source", "done"});
    const auto first = receive(1, 1);
    const Request extension = wait_for(change_batch, 1)[0];
    EXPECT_THAT(extension.handles(),
                testing::UnorderedElementsAre("in hand", "with the source", "done"));
    EXPECT_THAT(extension.entries("VisibilityTimeout"), ElementsAre("1", "1", "1"));
    const auto others = receive(2);
    worker->ack(std::span(others).last(1));
    wait_for(delete_batch, 1);
    EXPECT_THAT(wait_for(change_batch, 2)[1].handles(),
                testing::UnorderedElementsAre("in hand", "with the source"));
}

TEST_F(SqsWorkerTest, AnExtensionThatFailedIsRepeatedAndOneThatIsRefusedIsNot) {
    make(false, 1, seconds{1});
    open();
    then(change_batch, error(500, "InternalError"));
    then(change_batch, [](const Request& r) {
        const bool is_first = r.handles()[0] == "h1";
        return entries_answer(r, {{is_first ? 0 : 1, "ReceiptHandleIsInvalid"}}, true);
    });
    offer({"h1", "h2"});
    const auto deliveries = receive(2);
    const auto requests = wait_for(change_batch, 3);
    EXPECT_THAT(requests[1].handles(), SizeIs(2)) << "in time";
    EXPECT_THAT(requests[2].handles(), ElementsAre("h2"));
    worker->ack(deliveries);  // the first may yet be ours
    EXPECT_THAT(wait_for(delete_batch, 1)[0].handles(), ElementsAre("h1", "h2"));
    worker->close(patience);
    EXPECT_THAT(log(), Contains(HasSubstr("1 messages were not settled in time, and will come "
                                          "again: ReceiptHandleIsInvalid")));
}

// ------------------------------------------------------------------------------------------------
// The end
// ------------------------------------------------------------------------------------------------

TEST_F(SqsWorkerTest, CloseGivesBackWhatIsHeldAndWaitsForNoPoll) {
    make(false, 2);
    open();
    wait_for(receive_message, 2);
    offer({"h1", "h2", "h3"});
    receive(2, 2);
    worker->close(patience);  // though a poll is under way, which is not answered
    const auto given_back = requests(change_batch);
    ASSERT_THAT(given_back, SizeIs(1));
    EXPECT_THAT(given_back[0].handles(), ElementsAre("h1", "h2", "h3"));
    EXPECT_THAT(given_back[0].entries("VisibilityTimeout"), Each("0"));
    EXPECT_THAT(worker->receive(10, patience), IsEmpty());
    open();
    offer({"h4"});
    EXPECT_THAT(handles(receive(1)), ElementsAre("h4"));
}

TEST_F(SqsWorkerTest, CloseDeletesWhatWasAcknowledged) {
    make();
    open();
    offer({"h1", "h2"});
    const auto received = receive(2);
    worker->ack(std::span(received).first(1));
    worker->close(patience);
    EXPECT_THAT(requests(delete_batch).at(0).handles(), ElementsAre("h1"));
    EXPECT_THAT(requests(change_batch).at(0).handles(), ElementsAre("h2"));
}

TEST_F(SqsWorkerTest, CloseHasALimit) {
    make();
    open();
    offer({"h1"});
    receive(1);
    hold(change_batch);
    worker->close(milliseconds{1});
    EXPECT_THAT(log(), ElementsAre("1 messages could not be settled before the end"));
}

TEST_F(SqsWorkerTest, CloseEndsAReceiveThatWaits) {
    make();
    open();
    std::thread closer([&] {
        wait_for(receive_message, 1);
        worker->close(patience);
    });
    EXPECT_THAT(worker->receive(10, patience), IsEmpty());
    closer.join();
}

// ------------------------------------------------------------------------------------------------
// Errors
// ------------------------------------------------------------------------------------------------

TEST_F(SqsWorkerTest, AQueueThatDoesNotExistIsAnErrorForGood) {
    make();
    then(get_url, error(400, "QueueDoesNotExist"));
    try {
        open();
        ADD_FAILURE();
    } catch (const SourceError& error) {
        EXPECT_FALSE(error.transient());
        EXPECT_THAT(error.what(), HasSubstr("cannot find queue \"q\": HTTP 400"));
    }
    open();  // somebody has created it
    offer({"h1"});
    receive(1);
}

TEST_F(SqsWorkerTest, AServiceThatCannotBeReachedIsTransient) {
    for (const Reply& reply : {reset(), error(503, "ServiceUnavailable"), http(200, "{}")}) {
        make();
        then(get_url, reply);
        try {
            open();
            ADD_FAILURE();
        } catch (const SourceError& error) {
            EXPECT_TRUE(error.transient()) << error.what();
        }
        open();
    }
}

class NoPermission : public SqsWorkerTest, public testing::WithParamInterface<bool> {};

// From the beginning it is a mistake that somebody has to mend; later it may pass.
TEST_P(NoPermission, ToReceiveIsAnErrorAfterSeveralRefusals) {
    const bool has_worked = GetParam();
    make();
    if (has_worked)
        offer({});
    open();
    then(receive_message, error(403, "AccessDenied"), 3);
    const SourceError failed = error_of_receive();
    EXPECT_EQ(failed.transient(), has_worked);
    EXPECT_THAT(failed.what(), HasSubstr("AccessDenied"));
    EXPECT_THAT(failed.what(), testing::Not(HasSubstr("s3cret")));
    EXPECT_THAT(log(), SizeIs(2));
    open();
    offer({"h1"});
    receive(1);
}

INSTANTIATE_TEST_SUITE_P(Sqs, NoPermission, testing::Bool());

TEST_F(SqsWorkerTest, WhatWasReceivedSurvivesAnError) {
    make();
    open();
    offer({"h1", "h2"});
    const auto received = receive(1, 1);
    then(receive_message, error(403, "AccessDenied"), 3);
    EXPECT_THAT(handles(receive(1)), ElementsAre("h2")) << "what has come is handed out first";
    error_of_receive();
    worker->ack(received);
    EXPECT_THAT(wait_for(delete_batch, 1)[0].handles(), ElementsAre("h1"));
}

// A FIFO queue gives it the same messages again; else their groups would wait until they are visible.
TEST_F(SqsWorkerTest, APollWhoseAnswerWasLostIsRepeatedAsTheSame) {
    make(true);
    then(receive_message, reset());
    offer({"h1"}, "a");
    open();
    receive(1);
    std::vector<std::string> attempts;
    for (const Request& request : wait_for(receive_message, 3))
        attempts.push_back(request.body["ReceiveRequestAttemptId"].asString());
    EXPECT_NE(attempts[0], "");
    EXPECT_EQ(attempts[1], attempts[0]);
    EXPECT_NE(attempts[2], attempts[0]);
}

}  // namespace
}  // namespace inbox::sqs
