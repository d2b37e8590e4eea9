// HTTP/2 over TLS against a peer in this process, which may misbehave. Both go step by step in one
// thread, so each test decides what is on the way when something happens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "net/http1_response.hpp"
#include "net/transport.hpp"
#include "unit/drive.hpp"
#include "unit/failing_new.hpp"
#include "unit/http2_peer.hpp"
#include "unit/mutations.hpp"

namespace outbox {
namespace {

using testing::HasSubstr;

// Tests skip the limits of the transport, so nobody waits for them.
class SkippingClock final : public Clock {
  public:
    Micros now() const noexcept override { return system_.now() + skipped_; }
    Micros unix_now() const noexcept override { return system_.unix_now() + skipped_; }
    void skip(Micros time) noexcept { skipped_ += time; }

  private:
    SystemClock system_;
    Micros skipped_ = 0;
};

std::string number(std::uint64_t value, int bytes) {
    std::string text;
    while (bytes-- > 0)
        text += static_cast<char>(value >> (8 * bytes));
    return text;
}

std::string frame(int type, int flags, std::uint32_t stream, const std::string& payload) {
    return number(payload.size(), 3) + number(static_cast<unsigned>(type), 1) +
           number(static_cast<unsigned>(flags), 1) + number(stream, 4) + payload;
}

const std::string settings = frame(NGHTTP2_SETTINGS, 0, 0, "");
const std::string ack = frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, "");
const std::string status_200 = "\x88";  // RFC 7541, appendix A

class Http2TransportTest : public testing::Test {
  protected:
    Http2TransportTest() {
        initialize_curl();
        options_.allowed_hosts = AllowedHosts::parse("127.0.0.1").value();
        // Longer than a test may take.
        options_.connect_timeout = options_.request_timeout = 2 * patience;
        options_.ca_file = peer_.ca_file();
    }

    void make(std::size_t max_connections = 1) {
        TransportConfig config =
            transport_config(options_, clock_, peer_.url(path_), max_connections);
        config.authorization = authorization_;
        config.repeats = &repeats_;
        transport_.reset();
        transport_ = create_transport_for_many(std::move(config));
    }

    Exchange& send(std::string body = "hello") {
        Exchange& exchange = exchanges_.emplace_back();
        exchange.content.headers = "Content-Type: text/plain\r\n";
        exchange.content.buffer = std::move(body);
        exchange.content.body = exchange.content.buffer;
        transport_->send(exchange);
        return exchange;
    }

    // No time-out of poll() helps out when the transport forgets to be woken.
    void step_once(Micros give_up) {
        const long allocations = std::exchange(allocations_until_failure, -1);
        std::vector<pollfd> watched{{transport_->descriptor(), POLLIN, 0}};
        peer_.watch(watched);
        const Micros due = std::min(transport_->deadline(), give_up);
        const Micros left = std::max<Micros>(0, due - clock_.now());
        const int ready =
            poll(watched.data(), watched.size(), static_cast<int>((left + 999) / 1000));
        idle_steps_ = left == 0 && ready == 0 ? idle_steps_ + 1 : 0;
        peer_.step();
        allocations_until_failure = allocations;
        transport_->step(clock_.now(), done_);
    }

    template <class Condition>
    void run_until(Condition condition) {
        const Micros give_up = clock_.now() + patience;
        while (!condition() && clock_.now() < give_up) {
            step_once(give_up);
            ASSERT_LT(idle_steps_, 1'000) << "the transport wants to step, and nothing happens";
        }
        ASSERT_TRUE(condition());
    }

    bool is_done(const Exchange& exchange) const {
        return std::find(done_.begin(), done_.end(), &exchange) != done_.end();
    }

    // Runs until all requests have ended, each once.
    void run_to_the_end() {
        run_until([&] { return done_.size() >= exchanges_.size(); });
        for (const Exchange& exchange : exchanges_)
            EXPECT_EQ(std::count(done_.begin(), done_.end(), &exchange), 1);
    }

    void run_until_requests(std::size_t count) {
        run_until([&] { return peer_.complete_requests() >= count; });
    }

    void hold() { peer_.answer = nullptr; }
    void answer_all() {
        peer_.answer = [](Http2Peer::Request& request) { request.reply(204); };
    }

    void allow_streams(std::uint32_t most) {
        peer_.settings = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, most}};
    }

    // The peer takes as much as comes.
    static void open_windows(nghttp2_session* session) {
        nghttp2_submit_window_update(session, NGHTTP2_FLAG_NONE, 0, 1 << 30);
    }

    // Sends a request that is answered, so that the connection counts as one that works.
    void use_connection() {
        Exchange& exchange = send();
        run_until([&] { return is_done(exchange); });
        ASSERT_EQ(exchange.status, 204) << exchange.error;
    }

    using Answer = std::function<void(Http2Peer::Request&)>;

    // Returns why a request failed with each of these answers. The connection has to survive them.
    std::vector<std::string> errors_of_answers(const std::vector<Answer>& answers) {
        std::vector<std::string> errors;
        make();
        for (const Answer& answer : answers) {
            peer_.answer = answer;
            const Exchange& exchange = send();
            run_to_the_end();
            EXPECT_EQ(exchange.status, 0);
            EXPECT_TRUE(exchange.reached);
            errors.push_back(exchange.error);
            answer_all();
            use_connection();
        }
        EXPECT_EQ(peer_.connections().size(), 1u);
        return errors;
    }

    SkippingClock clock_;
    Http2Peer peer_;
    TransportOptions options_;
    std::string path_ = "/events";
    std::string authorization_;
    Repeats repeats_;
    std::deque<Exchange> exchanges_;
    std::unique_ptr<Transport> transport_;
    std::vector<Exchange*> done_;
    int idle_steps_ = 0;
};

// -- requests and answers -------------------------------------------------------------------------

TEST_F(Http2TransportTest, AnswerHasStatusBodyAndRetryAfter) {
    peer_.answer = [](auto& request) {
        request.reply(503, "try later", {{"x", "y"}, {"retry-after", "7"}});
    };
    make();
    const Exchange& exchange = send();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 503);
    EXPECT_EQ(exchange.body, "try later");
    EXPECT_EQ(exchange.retry_after, "7");
}

TEST_F(Http2TransportTest, SkipsInterimAnswers) {
    peer_.answer = [](auto& request) {
        request.interim(100);
        request.interim(103, {{"retry-after", "9"}});
        request.reply(200, "ok");
    };
    make();
    const Exchange& exchange = send();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 200);
    EXPECT_EQ(exchange.body, "ok");
    EXPECT_EQ(exchange.retry_after, "");
}

TEST_F(Http2TransportTest, RequestArrivesAsItWasGiven) {
    path_ = "/events?a=b";
    authorization_ = "Bearer secret";
    make();
    Exchange& exchange = exchanges_.emplace_back();
    exchange.method = "PUT";
    exchange.target = "/other?c=d";
    exchange.content.headers = "Content-Type: a/b\r\nX-Padded:   in the middle  \r\nX-Empty:\r\n";
    exchange.content.body = "hello";
    transport_->send(exchange);
    run_to_the_end();
    ASSERT_EQ(peer_.requests().size(), 1u);
    const Http2Peer::Request& request = peer_.requests().front();
    const std::string authority = peer_.url("").substr(std::string("https://").size());
    EXPECT_THAT(
        request.headers,
        testing::UnorderedElementsAre(
            testing::Pair(":method", "PUT"), testing::Pair(":scheme", "https"),
            testing::Pair(":authority", authority), testing::Pair(":path", "/other?c=d"),
            testing::Pair("user-agent", user_agent),
            testing::Pair("authorization", "Bearer secret"), testing::Pair("content-type", "a/b"),
            testing::Pair("x-padded", "in the middle"), testing::Pair("x-empty", ""),
            testing::Pair("content-length", "5")));
    EXPECT_EQ(request.body, "hello");

    send();
    run_to_the_end();
    EXPECT_EQ(peer_.requests().back().headers[":path"], "/events?a=b");
    EXPECT_EQ(peer_.requests().back().headers[":method"], "POST");
}

TEST_F(Http2TransportTest, ARequestMayBringItsOwnAuthorization) {
    make();
    for (const char* value : {"Bearer one", "Bearer two"}) {
        Exchange& exchange = exchanges_.emplace_back();
        exchange.content.headers = std::string("Authorization: ") + value + "\r\n";
        transport_->send(exchange);
        run_to_the_end();
        EXPECT_EQ(peer_.requests().back().headers["authorization"], value);
    }
}

TEST_F(Http2TransportTest, ManyRequestsGoSideBySideOverOneConnection) {
    hold();
    make(4);
    for (int i = 0; i < 100; i++)
        send(std::to_string(i));
    run_until_requests(100);
    std::size_t answered = 0;
    for (auto request = peer_.requests().rbegin(); request != peer_.requests().rend(); ++request) {
        request->reply(200, "answer to " + request->body);
        run_until([&] { return done_.size() == answered + 1; });
        answered++;
        EXPECT_EQ(done_.back()->body, "answer to " + done_.back()->content.buffer);
    }
    run_to_the_end();
    EXPECT_EQ(peer_.connections().size(), 1u);
}

TEST_F(Http2TransportTest, BodiesMayBeLargerThanTheWindow) {
    constexpr std::size_t size = 700'000;
    peer_.answer = [](auto& request) { request.reply(200, request.body); };
    make();
    std::string body;
    for (std::size_t i = 0; body.size() < size; i++)
        body += std::to_string(i) + ' ';
    Exchange& exchange = exchanges_.emplace_back();
    exchange.content.body = body;
    exchange.keep_body = size / 2;
    transport_->send(exchange);
    send(body);
    run_to_the_end();
    for (const Http2Peer::Request& request : peer_.requests())
        EXPECT_TRUE(request.body == body);
    EXPECT_TRUE(exchange.body == body.substr(0, size / 2));
    EXPECT_EQ(exchanges_.back().body, body.substr(0, usual_kept_body));
}

// Nothing that the server sends wakes the client meanwhile.
TEST_F(Http2TransportTest, ALargeBodyIsSentToItsEnd) {
    constexpr std::size_t size = 16 * 1024 * 1024;
    peer_.settings = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7fffffff}};
    make();
    use_connection();
    open_windows(peer_.connections()[0]->session());
    const Exchange& exchange = send(std::string(size, 'x'));
    run_to_the_end();
    EXPECT_EQ(exchange.status, 204) << exchange.error;
    EXPECT_EQ(peer_.requests().back().body.size(), size);
}

TEST_F(Http2TransportTest, BodiesMayBeEmpty) {
    make();
    const Exchange& exchange = send("");
    run_to_the_end();
    EXPECT_EQ(exchange.status, 204);
    EXPECT_EQ(exchange.body, "");
    EXPECT_EQ(peer_.requests().front().headers["content-length"], "0");
}

TEST_F(Http2TransportTest, TheRestOfALargeAnswerIsNotRead) {
    peer_.answer = [](auto& request) {
        request.reply(200, std::string(4 * Http1Response::max_body, 'x'));
    };
    make();
    const Exchange& exchange = send();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 200);
    EXPECT_EQ(exchange.body, std::string(usual_kept_body, 'x'));
    run_until([&] { return peer_.requests().front().is_closed; });
    EXPECT_LT(peer_.requests().front().answered, 2 * Http1Response::max_body);
    answer_all();
    use_connection();
    EXPECT_EQ(peer_.connections().size(), 1u);
}

// RFC 9113, section 8.1.
TEST_F(Http2TransportTest, AnAnswerMayComeBeforeTheRequestIsRead) {
    for (const bool resets : {false, true}) {
        peer_.opens_windows = false;
        hold();
        make();
        const std::size_t known = peer_.requests().size();
        Exchange& exchange = exchanges_.emplace_back();
        auto body = std::make_unique<std::string>(1'000'000, 'x');
        exchange.content.body = *body;
        transport_->send(exchange);
        run_until([&] { return peer_.requests().size() > known; });
        Http2Peer::Request& request = peer_.requests().back();
        request.reply(413);
        peer_.step();  // nghttp2 would leave out what comes before a reset
        if (resets)
            request.reset(NGHTTP2_NO_ERROR);
        open_windows(request.connection->session());
        run_to_the_end();
        EXPECT_EQ(exchange.status, 413) << exchange.error;
        // The owner may use the exchange and the memory of the body again.
        body.reset();
        exchange.content.body = "another";
        run_until([&] { return request.is_closed; });
        answer_all();
        use_connection();
        EXPECT_EQ(peer_.requests().back().connection, request.connection);
        EXPECT_LT(request.body.size(), 1'000'000u);
    }
}

// -- the server's limit of streams ----------------------------------------------------------------

TEST_F(Http2TransportTest, OpensAnotherConnectionWhenTheServerTakesNoMore) {
    allow_streams(1);
    hold();
    make(2);
    send();
    send();
    run_until_requests(2);
    EXPECT_EQ(peer_.connections().size(), 2u);
    for (Http2Peer::Request& request : peer_.requests())
        if (request.is_complete && !request.is_closed)
            request.reply(204);
    answer_all();
    for (int i = 0; i < 8; i++)
        send();
    run_to_the_end();
    for (const Exchange& exchange : exchanges_)
        EXPECT_EQ(exchange.status, 204) << exchange.error;
    EXPECT_EQ(peer_.connections().size(), 2u);
}

// The server refuses those beyond its limit. The client learns it before it sends a second request.
TEST_F(Http2TransportTest, ALowLimitOfTheServerFailsNoRequest) {
    allow_streams(1);
    make(12);
    for (int i = 0; i < 100; i++)
        send();
    run_to_the_end();
    for (const Exchange& exchange : exchanges_)
        EXPECT_EQ(exchange.status, 204) << exchange.error;
    EXPECT_EQ(peer_.requests().size(), 100u) << "some were refused and sent again";
}

TEST_F(Http2TransportTest, RequestsExpireIfTheServerTakesNone) {
    allow_streams(0);
    make(2);
    const Exchange& exchange = send();
    // It waits in nghttp2 if it was given to it before the settings came.
    run_until([&] { return exchange.reached || peer_.connections().size() == 2; });
    clock_.skip(options_.request_timeout);
    run_until([&] { return is_done(exchange); });
    EXPECT_THAT(exchange.error, HasSubstr("no answer within"));
}

// -- streams that the server resets ---------------------------------------------------------------

TEST_F(Http2TransportTest, AResetStreamFailsOnlyItsRequest) {
    hold();
    make();
    for (int i = 0; i < 3; i++)
        send(std::to_string(i));
    run_until_requests(3);
    peer_.requests()[1].reset(NGHTTP2_INTERNAL_ERROR);
    run_until([&] { return done_.size() == 1; });
    const Exchange& failed = *done_.front();
    EXPECT_EQ(failed.content.buffer, peer_.requests()[1].body);
    EXPECT_EQ(failed.status, 0);
    EXPECT_TRUE(failed.reached);
    EXPECT_THAT(failed.error, HasSubstr("INTERNAL_ERROR"));
    EXPECT_EQ(failed.scope, Scope::connection);
    peer_.requests()[0].reply(204);
    peer_.requests()[2].reply(204);
    run_to_the_end();
    EXPECT_EQ(exchanges_[0].status, 204);
    EXPECT_EQ(exchanges_[2].status, 204);
    EXPECT_EQ(peer_.connections().size(), 1u);
}

TEST_F(Http2TransportTest, AnAnswerThatIsCutOffIsAFailure) {
    hold();
    make();
    const Exchange& exchange = send();
    run_until_requests(1);
    Http2Peer::Request& request = peer_.requests().front();
    request.interim(103);
    peer_.step();
    request.reset(NGHTTP2_NO_ERROR);
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_TRUE(exchange.reached);
    EXPECT_THAT(exchange.error, HasSubstr("NO_ERROR"));
}

TEST_F(Http2TransportTest, RefusedRequestsAreSentAgain) {
    peer_.answer = [this](auto& request) {
        if (peer_.requests().size() <= 5)
            request.reset(NGHTTP2_REFUSED_STREAM);
        else
            request.reply(204);
    };
    make();
    const Exchange& exchange = send();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 204) << exchange.error;
    EXPECT_EQ(peer_.requests().size(), 6u);
    EXPECT_EQ(peer_.requests().back().body, "hello");
    EXPECT_EQ(repeats_.count, 0u) << "the server has not read it";
}

TEST_F(Http2TransportTest, RefusedRequestsAreNotSentForEver) {
    peer_.answer = [](auto& request) { request.reset(NGHTTP2_REFUSED_STREAM); };
    make();
    const Exchange& exchange = send();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_THAT(exchange.error, HasSubstr("REFUSED_STREAM"));
    EXPECT_EQ(peer_.requests().size(), 6u);
    answer_all();
    use_connection();
}

// nghttp2 refuses to send more than 64 kB of them.
TEST_F(Http2TransportTest, RequestsWithTooManyHeadersFail) {
    make();
    Exchange& exchange = exchanges_.emplace_back();
    for (int i = 0; i < 80; i++)
        exchange.content.headers += "X-Long: " + std::string(1000, 'x') + "\r\n";
    transport_->send(exchange);
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_NE(exchange.error, "");
    use_connection();
}

// -- connections that end -------------------------------------------------------------------------

TEST_F(Http2TransportTest, RequestsThatAServerLeavesBehindAreSentAgain) {
    hold();
    make(2);
    for (int i = 0; i < 3; i++)
        send(std::to_string(i));
    run_until_requests(3);
    std::deque<Http2Peer::Request>& requests = peer_.requests();
    requests[0].connection->go_away(requests[0].stream);
    run_until_requests(5);
    EXPECT_EQ(peer_.connections().size(), 2u);
    EXPECT_EQ(requests[3].connection, peer_.connections()[1].get());
    EXPECT_EQ(requests[4].connection, peer_.connections()[1].get());
    EXPECT_TRUE(done_.empty());
    for (const int i : {0, 3, 4})
        requests[static_cast<std::size_t>(i)].reply(200,
                                                    requests[static_cast<std::size_t>(i)].body);
    run_to_the_end();
    for (const Exchange& exchange : exchanges_)
        EXPECT_EQ(exchange.body, exchange.content.buffer) << exchange.error;
    // The old one is closed.
    run_until([&] { return peer_.connections()[0]->is_closed(); });
    EXPECT_FALSE(peer_.connections()[1]->is_closed());
}

// Connections remember requests in any order, and those that return may have to wait.
TEST_F(Http2TransportTest, TheOldestRequestExpiresFirst) {
    hold();
    make();
    send("first");
    send("second");
    run_until_requests(2);
    peer_.requests()[0].reply(204);
    run_until([&] { return done_.size() == 1; });
    const Micros part = options_.request_timeout / 4;
    clock_.skip(part);
    const Exchange& young = send("young");  // at the place of the first
    run_until_requests(3);
    peer_.shakes_hands = false;
    options_.connect_timeout = never;
    const Exchange& old = exchanges_[1];
    peer_.connections()[0]->go_away(0);
    run_until([&] { return peer_.connections().size() == 2; });
    clock_.skip(options_.request_timeout - part);
    run_until([&] { return is_done(old); });
    EXPECT_FALSE(is_done(young));
}

TEST_F(Http2TransportTest, ServersThatAlwaysLeaveGetNoEndlessRepeats) {
    peer_.answer = [](auto& request) { request.connection->go_away(0); };
    make();
    const Exchange& exchange = send();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_EQ(peer_.connections().size(), 6u);
}

TEST_F(Http2TransportTest, AConnectionThatEndsBeforeAnyAnswerIsAFailure) {
    hold();
    make();
    const Exchange& exchange = send();
    run_until_requests(1);
    peer_.connections()[0]->close();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_TRUE(exchange.reached);
    EXPECT_NE(exchange.error, "");
    answer_all();
    use_connection();
}

TEST_F(Http2TransportTest, RequestsThatAUsedConnectionLosesAreSentOnceMore) {
    make();
    use_connection();
    hold();
    const Exchange& exchange = send();
    run_until_requests(2);
    peer_.connections()[0]->close();
    run_until_requests(3);
    EXPECT_EQ(peer_.connections().size(), 2u);
    EXPECT_FALSE(is_done(exchange));
    peer_.requests()[2].reply(204);
    run_to_the_end();
    EXPECT_EQ(exchange.status, 204) << exchange.error;
    EXPECT_EQ(repeats_.count, 1u);
    EXPECT_NE(repeats_.why, "");

    const Exchange& unlucky = send();
    for (std::size_t count : {4u, 5u}) {
        run_until_requests(count);
        if (count == 5) {  // this connection works too
            answer_all();
            send();
            run_until_requests(6);
            run_until([&] { return done_.size() == 3; });
        }
        peer_.requests()[count - 1].connection->close();
    }
    run_to_the_end();
    EXPECT_EQ(unlucky.status, 0);
    EXPECT_TRUE(unlucky.reached);
    EXPECT_EQ(repeats_.count, 2u);
}

// It may have arrived over the first one.
TEST_F(Http2TransportTest, ALostRequestThatFindsNoOtherConnectionHasReachedTheServer) {
    make();
    use_connection();
    hold();
    const Exchange& exchange = send();
    run_until_requests(2);
    peer_.stop_listening();
    peer_.connections()[0]->close();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_TRUE(exchange.reached);
    EXPECT_EQ(repeats_.count, 1u);
}

TEST_F(Http2TransportTest, WhatCameBeforeTheEndIsRead) {
    hold();
    make();
    const Exchange& answered = send();
    const Exchange& lost = send();
    run_until_requests(2);
    Http2Peer::Request& first = peer_.requests().front();
    first.reply(200, "last words");
    first.connection->close_after_output();
    run_until([&] { return !done_.empty(); });
    EXPECT_EQ(answered.body + lost.body, "last words");
    run_until_requests(3);
    peer_.requests().back().reply(204);
    run_to_the_end();
}

TEST_F(Http2TransportTest, AClosedPortIsAFailure) {
    {
        Http2Peer gone;
        TransportConfig config = transport_config(options_, clock_, gone.url(), 1);
        transport_ = create_transport_for_many(std::move(config));
    }
    const Exchange& exchange = send();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_FALSE(exchange.reached);
    EXPECT_EQ(exchange.scope, Scope::connection);
}

// -- servers that break the rules -----------------------------------------------------------------

TEST_F(Http2TransportTest, HeadsThatAreTooLargeFailTheirRequest) {
    const auto many = [](int count, std::size_t size) {
        Http2Lines lines;
        for (int i = 0; i < count; i++)
            lines.emplace_back("x", std::string(size, 'x'));
        return lines;
    };
    const std::vector<Answer> answers{
        [&](auto& request) { request.reply(200, "", many(300, 1)); },
        [&](auto& request) { request.reply(200, "", many(70, 1'000)); },
        [&](auto& request) {
            for (int i = 0; i < 20; i++)
                request.interim(103);
            request.reply(200);
        },
        [&](auto& request) {
            for (int i = 0; i < 10; i++)
                request.interim(103, many(10, 1'000));
            request.reply(200);
        }};
    for (const std::string& error : errors_of_answers(answers))
        EXPECT_EQ(error, "the head of the answer is too large");
}

TEST_F(Http2TransportTest, AnswersThatMakeNoSenseFailTheirRequest) {
    const std::vector<Answer> answers{[](auto& request) { request.reply(0); },
                                      [](auto& request) { request.reply(99); },
                                      [](auto& request) { request.reply(101); },
                                      [](auto& request) { request.reply(103); },
                                      [](auto& request) {
                                          request.reply(200, "abc", {{"content-length", "4"}});
                                      },
                                      [](auto& request) {
                                          request.reply(200, "abc", {{"content-length", "2"}});
                                      },
                                      [](auto& request) {
                                          request.reply(200, "abc", {{"connection", "close"}});
                                      }};
    for (const std::string& error : errors_of_answers(answers))
        EXPECT_NE(error, "");
}

TEST_F(Http2TransportTest, MalformedFramesEndTheConnection) {
    const std::string huge_number = "\x7f\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    make();
    for (const std::string& bytes : {
             std::string("HTTP/1.1 400 Bad Request\r\n\r\n"),
             frame(NGHTTP2_PING, 0, 0, "12345678"),  // without settings before it
             frame(NGHTTP2_SETTINGS, 0, 0, "12345"),
             settings + frame(NGHTTP2_DATA, 0, 0, "x"),
             settings + frame(NGHTTP2_DATA, 0, 1, std::string(20'000, 'x')),
             settings + frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, huge_number),
             settings + frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 101, status_200),
             settings + frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 2, status_200),
             settings + frame(NGHTTP2_CONTINUATION, NGHTTP2_FLAG_END_HEADERS, 1, status_200),
             settings + frame(NGHTTP2_HEADERS, 0, 1, status_200) +
                 frame(NGHTTP2_PING, 0, 0, "12345678"),
             settings + ack +
                 frame(NGHTTP2_PUSH_PROMISE, NGHTTP2_FLAG_END_HEADERS, 1,
                       number(2, 4) + status_200),
             settings + frame(NGHTTP2_WINDOW_UPDATE, 0, 0, number(0x7fffffff, 4)),
             settings + frame(NGHTTP2_RST_STREAM, 0, 101, number(0, 4)),
             settings + frame(NGHTTP2_PING, 0, 0, "123"),
         }) {
        peer_.speaks = false;
        Exchange& exchange = send();
        run_until([&] {  // not over the connection of the round before
            return !peer_.connections().empty() && !peer_.connections().back()->is_closed() &&
                   peer_.connections().back()->received().find("hello") != std::string::npos;
        });
        peer_.connections().back()->send_raw(bytes);
        run_to_the_end();
        EXPECT_EQ(exchange.status, 0);
        EXPECT_TRUE(exchange.reached);
        EXPECT_NE(exchange.error, "");
        peer_.speaks = true;
        use_connection();
        // The next round needs a new connection.
        peer_.connections().back()->close();
    }
}

TEST_F(Http2TransportTest, PingsOfAPeerThatDoesNotReadEndTheConnection) {
    hold();
    make();
    const Exchange& exchange = send();
    run_until_requests(1);
    Http2Peer::Connection& connection = *peer_.connections()[0];
    connection.stop_reading();
    std::string pings;
    while (pings.size() < 16'000)
        pings += frame(NGHTTP2_PING, 0, 0, "12345678");
    run_until([&] {
        if (connection.unsent() == 0)
            connection.send_raw(pings);
        return is_done(exchange);
    });
    EXPECT_EQ(exchange.status, 0);
    EXPECT_TRUE(exchange.reached);
    EXPECT_THAT(exchange.error, HasSubstr("broke the protocol"));
    answer_all();
    use_connection();
}

// A stream of valid frames with errors neither crashes the client nor holds up a request.
TEST_F(Http2TransportTest, RandomBytesEndEachRequestOnce) {
    const auto headers = [](std::uint32_t stream, int flags, const std::string& block) {
        return frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | flags, stream, block);
    };
    const auto data = [](std::uint32_t stream, int flags, const std::string& bytes) {
        return frame(NGHTTP2_DATA, flags, stream, bytes);
    };
    const std::string window = frame(NGHTTP2_WINDOW_UPDATE, 0, 0, number(100'000, 4)),
                      ping = frame(NGHTTP2_PING, 0, 0, "12345678"),
                      retry_after = status_200 + "\x0f\x26\x01" + "7",
                      limit = frame(NGHTTP2_SETTINGS, 0, 0, number(3, 2) + number(1, 4)),
                      goaway = frame(NGHTTP2_GOAWAY, 0, 0, number(1, 4) + number(0, 4));
    Mutations streams(
        {settings + ack + window + headers(1, NGHTTP2_FLAG_END_STREAM, retry_after) + ping,
         settings + headers(1, 0, status_200) + data(1, 0, "hello") +
             data(1, NGHTTP2_FLAG_END_STREAM, "") + headers(3, NGHTTP2_FLAG_END_STREAM, status_200),
         limit + headers(1, 0, std::string(1, '\x08') + "\x03" + "103") +
             headers(1, 0, status_200) + data(1, NGHTTP2_FLAG_END_STREAM, "hello") + goaway,
         settings + frame(NGHTTP2_HEADERS, 0, 1, "\x88\x00") +
             frame(NGHTTP2_CONTINUATION, NGHTTP2_FLAG_END_HEADERS, 1, "\x01x\x01y") +
             frame(NGHTTP2_RST_STREAM, 0, 1, number(7, 4)),
         settings + headers(1, 0, status_200) + data(1, 0, "x") +
             headers(1, NGHTTP2_FLAG_END_STREAM, std::string("\x00\x01x\x01y", 5)) +
             frame(NGHTTP2_RST_STREAM, 0, 1, number(0, 4))},
        std::string_view("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x7f\x80\x88\xff", 14));
    peer_.speaks = false;
    int answered = 0;
    for (int i = 0; i < 150; i++) {
        make();
        exchanges_.clear();
        done_.clear();
        Exchange& first = send();
        send(std::string(100'000, 'x'));
        std::size_t attacked = peer_.connections().size();
        run_until([&] {
            for (; attacked < peer_.connections().size() && first.reached; attacked++) {
                peer_.connections()[attacked]->send_raw(streams.next());
                peer_.connections()[attacked]->close_after_output();
            }
            return done_.size() >= 2;
        });
        run_to_the_end();
        answered += first.status != 0;
    }
    EXPECT_GT(answered, 5);
    EXPECT_LT(answered, 145);
}

// -- servers that say nothing ---------------------------------------------------------------------

TEST_F(Http2TransportTest, ASilentServerIsDisconnected) {
    peer_.speaks = false;
    make();
    Exchange& exchange = send();
    const Exchange& waiting = send();
    run_until([&] { return exchange.reached; });
    clock_.skip(options_.request_timeout);
    run_to_the_end();
    EXPECT_THAT(exchange.error, HasSubstr("no answer within"));
    EXPECT_TRUE(exchange.reached);
    EXPECT_THAT(waiting.error, HasSubstr("no answer within"));
    peer_.speaks = true;
    use_connection();
    EXPECT_EQ(peer_.connections().size(), 2u);
}

TEST_F(Http2TransportTest, AnAnswerWithoutEndCountsByItsHead) {
    peer_.answer = [](auto& request) { request.interim(200); };
    make();
    const Exchange& exchange = send();
    run_until_requests(1);
    answer_all();
    use_connection();  // so that the head has been read
    clock_.skip(options_.request_timeout);
    run_to_the_end();
    EXPECT_EQ(exchange.status, 200) << exchange.error;
    run_until([&] { return peer_.requests().front().is_closed; });
    use_connection();
    EXPECT_EQ(peer_.connections().size(), 1u);
}

TEST_F(Http2TransportTest, ALateAnswerDoesNotHarmTheConnection) {
    hold();
    make();
    const Exchange& late = send();
    run_until_requests(1);
    clock_.skip(options_.request_timeout / 2);
    answer_all();
    use_connection();  // the server is alive
    clock_.skip(options_.request_timeout / 2);
    run_to_the_end();
    EXPECT_THAT(late.error, HasSubstr("no answer within"));
    EXPECT_TRUE(late.reached);
    run_until([&] { return peer_.requests()[0].is_closed; });
    use_connection();
    EXPECT_EQ(peer_.connections().size(), 1u);
}

// Nothing can be sent, so the stream stays open after the request has ended.
TEST_F(Http2TransportTest, ARequestThatExpiredIsNotReadAnyMore) {
    constexpr std::size_t much = 32 * 1024 * 1024;
    peer_.settings = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7fffffff}};
    make();
    use_connection();
    Http2Peer::Connection& connection = *peer_.connections()[0];
    hold();
    const std::size_t known = connection.received().size();
    open_windows(connection.session());
    Exchange& exchange = exchanges_.emplace_back();
    auto body = std::make_unique<std::string>(much, 'x');
    exchange.content.body = *body;
    transport_->send(exchange);
    run_until([&] { return connection.received().size() > known + 100'000; });
    connection.stop_reading();
    clock_.skip(options_.request_timeout / 2);
    const Exchange& other = send();
    clock_.skip(options_.request_timeout / 2);
    run_until([&] { return is_done(exchange); });
    EXPECT_FALSE(is_done(other));
    body.reset();
    exchange.content.body = {};
    connection.read_again();
    run_until_requests(2);
    run_until([&] { return peer_.requests()[1].is_closed; });
    EXPECT_LT(peer_.requests()[1].body.size(), much);
    peer_.requests()[2].reply(204);
    run_to_the_end();
    EXPECT_EQ(other.status, 204) << other.error;
}

// It is alive, but neither requests nor what closes their streams would reach it.
TEST_F(Http2TransportTest, AServerThatStopsReadingIsLeft) {
    peer_.settings = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7fffffff}};
    make();
    use_connection();
    Http2Peer::Connection& connection = *peer_.connections()[0];
    open_windows(connection.session());
    const std::size_t known = connection.received().size();
    const Exchange& exchange = send(std::string(32 * 1024 * 1024, 'x'));
    run_until([&] { return connection.received().size() > known + 100'000; });
    clock_.skip(seconds(1));
    use_connection();
    connection.stop_reading();
    run_until([&] {
        pollfd watched{transport_->descriptor(), POLLIN, 0};
        return poll(&watched, 1, 0) == 0 && transport_->deadline() > clock_.now();
    });
    clock_.skip(options_.request_timeout);
    run_until([&] { return is_done(exchange); });
    EXPECT_THAT(exchange.error, HasSubstr("no answer within"));
    use_connection();
    EXPECT_EQ(peer_.connections().size(), 2u);
}

TEST_F(Http2TransportTest, TheHandshakeHasALimit) {
    peer_.shakes_hands = false;
    make();
    const Exchange& exchange = send();
    run_until([&] {
        return !peer_.connections().empty() && !peer_.connections()[0]->received().empty();
    });
    clock_.skip(options_.connect_timeout);
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_FALSE(exchange.reached);
    EXPECT_EQ(exchange.scope, Scope::connection);
    EXPECT_NE(exchange.error, "");
    peer_.shakes_hands = true;
    use_connection();
}

// -- what is left to libcurl ----------------------------------------------------------------------

TEST_F(Http2TransportTest, LibcurlServesPeersWithoutHttp2) {
    for (const char* protocol : {"http/1.1", ""}) {
        peer_.protocol = protocol;
        make(2);
        send();
        send();
        run_to_the_end();
        send();
        run_to_the_end();
        for (const Exchange& exchange : exchanges_) {
            EXPECT_EQ(exchange.status, 200) << exchange.error;
            EXPECT_EQ(exchange.body, "by 1.1");
        }
    }
    EXPECT_EQ(peer_.http1_requests(), 6);
    EXPECT_TRUE(peer_.requests().empty());
}

TEST_F(Http2TransportTest, LibcurlTakesOverWhenTheServerWantsHttp1) {
    hold();
    make();
    send();
    send();
    run_until_requests(2);
    peer_.protocol = "http/1.1";
    peer_.requests()[0].reset(NGHTTP2_HTTP_1_1_REQUIRED);
    run_to_the_end();
    for (const Exchange& exchange : exchanges_)
        EXPECT_EQ(exchange.body, "by 1.1") << exchange.error;
    send();
    run_to_the_end();
    EXPECT_EQ(peer_.http1_requests(), 3);
}

TEST_F(Http2TransportTest, LibcurlTakesOverWhenTheServerWantsHttp1AndCloses) {
    for (const bool goes : {false, true}) {
        peer_.protocol = "h2";
        peer_.answer = [&](auto& request) {
            if (goes)
                request.connection->go_away(0, NGHTTP2_HTTP_1_1_REQUIRED);
            else
                request.reset(NGHTTP2_HTTP_1_1_REQUIRED);
            request.connection->close_after_output();
            peer_.protocol = "http/1.1";
        };
        make();
        const Exchange& exchange = send();
        run_to_the_end();
        EXPECT_EQ(exchange.body, "by 1.1") << exchange.error;
    }
}

TEST_F(Http2TransportTest, LibcurlTakesOverWhatOtherConnectionsLeave) {
    allow_streams(1);
    hold();
    make(2);
    send();
    send();
    run_until_requests(2);
    peer_.protocol = "http/1.1";
    peer_.requests()[0].reset(NGHTTP2_HTTP_1_1_REQUIRED);
    run_until([&] { return done_.size() == 1; });
    peer_.requests()[1].connection->go_away(0);
    run_to_the_end();
    EXPECT_EQ(peer_.http1_requests(), 2);
}

TEST_F(Http2TransportTest, LibcurlExplainsACertificateThatIsNotTrusted) {
    options_.ca_file.clear();
    make();
    const Exchange& exchange = send();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_FALSE(exchange.reached);
    EXPECT_EQ(exchange.scope, Scope::destination);
    EXPECT_THAT(exchange.error, HasSubstr("SSL certificate problem"));
}

TEST_F(Http2TransportTest, SaysThatAFileOfCertificatesIsMissing) {
    options_.ca_file = "/nonexistent/certificates.pem";
    make();
    const Exchange& exchange = send();
    run_to_the_end();
    EXPECT_EQ(exchange.status, 0);
    EXPECT_FALSE(exchange.reached);
    EXPECT_THAT(exchange.error, HasSubstr("ca_file"));
}

// -- the transport --------------------------------------------------------------------------------

TEST_F(Http2TransportTest, CanBeDestroyedAtAnyTime) {
    hold();
    for (int steps = 0; peer_.complete_requests() == 0; steps++) {
        make(2);
        exchanges_.clear();
        send(std::string(200'000, 'x'));
        send();
        const Micros give_up = clock_.now() + patience;
        for (int i = 0; i < steps; i++)
            step_once(give_up);
        transport_.reset();
        ASSERT_TRUE(done_.empty());
    }
}

TEST_F(Http2TransportTest, ThrowsBadAllocWhenMemoryRunsOut) {
    peer_.answer = [](auto& request) { request.reply(503, "hello", {{"retry-after", "soon"}}); };
    Exchange exchange;
    exchange.content.headers = "Content-Type: text/plain\r\n";
    exchange.content.body = "hello";
    for (long n = 0, failures = 1; failures > 0; n++) {
        done_.clear();
        exchange.status = 0;
        exchange.error.clear();
        bool thrown = false;
        TransportConfig config = transport_config(options_, clock_, peer_.url(), 1);
        const Micros give_up = clock_.now() + patience;
        allocations_until_failure = n;
        try {
            transport_ = create_transport_for_many(std::move(config));
            transport_->send(exchange);
            while (done_.empty() && clock_.now() < give_up)
                step_once(give_up);
        } catch (const std::bad_alloc&) {
            thrown = true;
        }
        failures = allocation_failed();
        // A failure inside a callback of libcurl is one of the connection.
        ASSERT_TRUE(thrown || !done_.empty()) << "allocation " << n;
    }
    EXPECT_EQ(exchange.status, 503) << exchange.error;
    EXPECT_EQ(exchange.body, "hello");
    EXPECT_EQ(exchange.retry_after, "soon");
}

}  // namespace
}  // namespace outbox
