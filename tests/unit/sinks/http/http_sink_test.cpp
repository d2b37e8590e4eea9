// The http sink against a scripted server on loopback.
#include <gtest/gtest.h>

#include "core/sink.hpp"
#include "net/transport.hpp"
#include "unit/drive.hpp"
#include "unit/failing_new.hpp"
#include "unit/scripted_peer.hpp"

namespace outbox {
namespace {

class HttpSink : public DrivenSink {
  protected:
    // `options` are added to the URL. Timeouts are short because tests wait for them.
    void create(std::vector<Option> options = {}, std::vector<Option> mapping = {}) {
        if (std::none_of(options.begin(), options.end(),
                         [](const Option& o) { return o.name == "url"; }))
            options.push_back({"url", peer_.url()});
        make(options, mapping, allowed_hosts_);
    }

    Batch& batch(std::int64_t position) {
        Event& event = events_.emplace_back();
        event.position = position;
        event.topic = "t.events";
        event.aggregate_type = "t";
        event.aggregate_id = event.ordering_key = "k";
        event.event_type = "Thing";
        event.content_type = "application/json";
        event.payload = payload_;
        event.has_payload = true;
        Batch& batch = batches_.emplace_back();
        batch.events = {&event};
        return batch;
    }

    Outcome send_one() { return send(batch(1)); }

    ScriptedPeer peer_;
    std::deque<Event> events_;
    std::deque<Batch> batches_;
    std::string payload_ = R"({"n":1})";
    std::string allowed_hosts_ = "127.0.0.1";
};

TEST_F(HttpSink, ThrowsBadAllocWhenMemoryRunsOut) {
    const Outcome outcome = send_without_memory(
        batch(1), [&] { create(); }, allocations_until_failure, allocation_failed);
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_NE(outcome.batch, nullptr);
}

TEST_F(HttpSink, ConfirmsOnAny2xxAndKeepsTheConnection) {
    create();
    for (const char* answer :
         {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 204 x\r\n\r\n",
          "HTTP/1.1 202 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
          "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 x\r\nContent-Length: 0\r\n\r\n"}) {
        peer_.then({.bytes = answer});
        EXPECT_EQ(send_one().fate, Fate::confirmed) << answer;
    }
    EXPECT_EQ(peer_.connections(), 1);
    const std::string request = peer_.requests().front();
    EXPECT_TRUE(request.starts_with("POST /events HTTP/1.1\r\nHost: 127.0.0.1:")) << request;
    EXPECT_NE(request.find("\r\nce-sequence: 1\r\n"), std::string::npos);
    EXPECT_TRUE(request.ends_with("\r\nContent-Length: 7\r\n\r\n{\"n\":1}")) << request;
}

TEST_F(HttpSink, SendsAsManyAtATimeAsConnectionsAreAllowed) {
    create({{"max_connections", "3"}});
    EXPECT_EQ(sink_->capabilities().max_batches, 3u);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 3; i++)
            sink_->submit(batch(i));
        for (const Outcome& outcome : outcomes(3))
            EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    }
    EXPECT_EQ(peer_.connections(), 3);
    EXPECT_EQ(peer_.requests().size(), 15u);
}

TEST_F(HttpSink, AnyOtherAnswerIsAFailureThatSaysWhy) {
    create();
    peer_.then({.bytes = "HTTP/1.1 500 x\r\nContent-Length: 9\r\n\r\nbad\nthing"});
    EXPECT_EQ(send_one().error, "HTTP 500: bad thing");
    peer_.then(
        {.bytes =
             "HTTP/1.1 302 Found\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n"});
    EXPECT_EQ(send_one().error, "HTTP 302 (redirects are not followed)");
    peer_.then({.bytes = "what?\r\n\r\n"});
    EXPECT_EQ(send_one().error, "malformed answer");
    peer_.then({.bytes = "HTTP/1.1 200 OK\r\nContent-Le", .close = true});
    EXPECT_EQ(send_one().error, "connection closed before the answer was complete");
    EXPECT_EQ(send_one().fate, Fate::confirmed);
}

TEST_F(HttpSink, ObeysRetryAfter) {
    create();
    peer_.then({.bytes = "HTTP/1.1 429 x\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"});
    EXPECT_EQ(send_one().retry_after, seconds(7));
    peer_.then({.bytes = "HTTP/1.1 503 x\r\nRetry-After: Wed, 01 Jan 2070 00:00:00 "
                         "GMT\r\nContent-Length: 0\r\n\r\n"});
    EXPECT_EQ(send_one().retry_after, seconds(24 * 60 * 60));
    peer_.then({.bytes = "HTTP/1.1 503 x\r\nRetry-After: Wed, 01 Jan 2020 00:00:00 "
                         "GMT\r\nContent-Length: 0\r\n\r\n"});
    EXPECT_EQ(send_one().retry_after, 0);
    peer_.then({.bytes = "HTTP/1.1 503 x\r\nRetry-After: 99999999999999999999\r\n"
                         "Content-Length: 0\r\n\r\n"});
    EXPECT_EQ(send_one().retry_after, seconds(24 * 60 * 60));
    peer_.then({.bytes = "HTTP/1.1 503 x\r\nRetry-After: soon\r\nContent-Length: 0\r\n\r\n"});
    EXPECT_EQ(send_one().retry_after, 0);
}

TEST_F(HttpSink, SendsAgainWhenAnIdleConnectionTurnsOutToBeClosed) {
    create();
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    // Simulates a server that closes the connection at that moment.
    peer_.then({.bytes = "", .close = true});
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(peer_.connections(), 2);
    EXPECT_EQ(peer_.requests().size(), 3u);
    // It may have arrived before.
    SinkReport report;
    sink_->report(report);
    EXPECT_EQ(report.sent_again, 1u);
    EXPECT_NE(report.why_again, "");
    sink_->report(report);
    EXPECT_EQ(report.sent_again, 0u);
}

TEST(CurlTransport, CountsWhatLibcurlSendsAgain) {
    ASSERT_TRUE(initialize_curl());
    ScriptedPeer peer;
    const SystemClock clock;
    TransportOptions options;
    options.allowed_hosts = AllowedHosts::parse("127.0.0.1").value();
    options.connect_timeout = options.request_timeout = patience;
    Repeats repeats;
    TransportConfig config = transport_config(options, clock, peer.url(), 1);
    config.repeats = &repeats;
    const std::unique_ptr<Transport> transport = create_curl_transport(std::move(config));
    const auto status_of_one = [&] {
        Exchange exchange;
        transport->send(exchange);
        for (std::vector<Exchange*> done; done.empty(); transport->step(clock.now(), done)) {
            pollfd watched{transport->descriptor(), POLLIN, 0};
            poll(&watched, 1, 10);
        }
        return exchange.status;
    };
    EXPECT_EQ(status_of_one(), 204);
    EXPECT_EQ(repeats.count, 0u);
    peer.then({.bytes = "", .close = true});
    EXPECT_EQ(status_of_one(), 204);
    EXPECT_EQ(peer.requests().size(), 3u);
    EXPECT_EQ(repeats.count, 1u);
    EXPECT_EQ(repeats.why, "127.0.0.1");
}

TEST_F(HttpSink, DoesNotSendAgainOnANewConnection) {
    create();
    peer_.then({.bytes = "", .close = true});
    EXPECT_NE(send_one().fate, Fate::confirmed);
    EXPECT_EQ(peer_.requests().size(), 1u);
}

TEST_F(HttpSink, TakesAnswersByteByByte) {
    create();
    peer_.then(
        {.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", .byte_by_byte = true});
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(peer_.connections(), 1);
}

TEST_F(HttpSink, OpensAnotherConnectionWhenTheServerClosesTheLast) {
    create();
    peer_.then({.bytes = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
                .close = true});
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(peer_.connections(), 2);
}

TEST_F(HttpSink, SendsLargeBodies) {
    create();
    payload_ = "\"" + std::string(8 * 1024 * 1024, 'x') + "\"";
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_TRUE(peer_.requests().front().ends_with(payload_));
}

TEST_F(HttpSink, GivesUpWhenThereIsNoAnswerInTime) {
    create({{"request_timeout", "1s"}});  // the second answer must be in time
    peer_.then({.bytes = ""});
    EXPECT_EQ(send_one().error, "no answer within 1s (request_timeout)");
    EXPECT_EQ(send_one().fate, Fate::confirmed);
}

// A stream of server-sent events, or a slow proxy.
TEST_F(HttpSink, AnAnswerWithoutEndCountsByItsHead) {
    create({{"request_timeout", "1s"}});
    const std::string body = "Transfer-Encoding: chunked\r\n\r\n4\r\nbusy\r\n";
    peer_.then({.bytes = "HTTP/1.1 200 OK\r\n" + body});
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    peer_.then({.bytes = "HTTP/1.1 503 x\r\n" + body});
    EXPECT_EQ(send_one().error, "HTTP 503: busy");
    peer_.then({.bytes = "HTTP/1.1 200 OK\r\nTransfer-Enc"});
    EXPECT_EQ(send_one().error, "no answer within 1s (request_timeout)");
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(peer_.connections(), 4);
}

TEST_F(HttpSink, ReportsARefusedConnection) {
    create({{"url", "http://127.0.0.1:1/"}});
    const Outcome outcome = send_one();
    EXPECT_NE(outcome.fate, Fate::confirmed);
    EXPECT_NE(outcome.error.find("onnect"), std::string::npos) << outcome.error;
}

TEST_F(HttpSink, SendsCredentialsAndNeverShowsThem) {
    create({}, {{"user", "u"}, {"password", "secret"}});
    peer_.then({.bytes = "HTTP/1.1 401 x\r\nContent-Length: 0\r\n\r\n"});
    EXPECT_EQ(send_one().error, "HTTP 401");
    EXPECT_NE(peer_.requests().front().find("\r\nAuthorization: Basic dTpzZWNyZXQ=\r\n"),
              std::string::npos);
    create({}, {{"token", "abc"}});
    send_one();
    EXPECT_NE(peer_.requests().back().find("\r\nAuthorization: Bearer abc\r\n"), std::string::npos);
}

// -- Headers of each request ------------------------------------------------------------------

TEST_F(HttpSink, SendsTheHeadersOfItsOptionInPlaceOfThoseOfEvents) {
    for (const char* format : {"binary", "structured", "batched"}) {
        create({{"format", format}}, {{"headers", "X-Api-Key: s3cret!\n\r\n x-tenant:7 \r\n"}});
        Batch& batch = this->batch(1);
        static constexpr Header headers[] = {{"x-TENANT", "forged"}, {"x-tenants", "kept"}};
        batch.events.front()->headers = headers;
        EXPECT_EQ(send(batch).fate, Fate::confirmed);
        const std::string request = peer_.requests().back();
        EXPECT_NE(request.find("\r\nX-Api-Key: s3cret!\r\nx-tenant: 7\r\n"), std::string::npos)
            << request;
        if (format != std::string("batched")) {  // which has no headers of events
            EXPECT_EQ(request.find("forged"), std::string::npos) << request;
            EXPECT_NE(request.find("\r\nx-tenants: kept\r\n"), std::string::npos) << request;
        }
    }
}

TEST_F(HttpSink, AHeaderAuthorizationReplacesTokenAndUser) {
    create({}, {{"token", "t"}, {"headers", "authorization: ApiKey 5ecret"}});
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    const std::string request = peer_.requests().back();
    EXPECT_NE(request.find("\r\nAuthorization: ApiKey 5ecret\r\n"), std::string::npos) << request;
    EXPECT_EQ(request.find("Bearer"), std::string::npos) << request;
}

// -- Signatures ---------------------------------------------------------------------------------

constexpr const char* signing_secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

std::size_t count_of(const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at++)
        count++;
    return count;
}

TEST_F(HttpSink, SignsEachRequestAndNothingElseHasTheseHeaders) {
    static constexpr Header forged[] = {{"Webhook-Id", "forged"},
                                        {"webhook-timestamp", "forged"},
                                        {"webhook-signature", "forged"},
                                        {"webhook-other", "kept"}};
    for (const char* format : {"binary", "structured", "batched"}) {
        create({{"format", format}}, {{"signing_secret", signing_secret},
                                      {"headers", "WEBHOOK-SIGNATURE: forged\nX-Tenant: 7"}});
        Batch& batch = this->batch(1);
        batch.events.front()->headers = forged;
        EXPECT_EQ(send(batch).fate, Fate::confirmed);
        const std::string request = peer_.requests().back();
        EXPECT_EQ(count_of(request, "webhook-id: "), 1u) << request;
        EXPECT_EQ(count_of(request, "webhook-timestamp: "), 1u) << request;
        EXPECT_EQ(count_of(request, "webhook-signature: v1,"), 1u) << request;
        EXPECT_EQ(request.find("Webhook-Id"), std::string::npos) << request;
        EXPECT_EQ(request.find("WEBHOOK-SIGNATURE"), std::string::npos) << request;
        EXPECT_NE(request.find("X-Tenant: 7\r\n"), std::string::npos) << request;
    }
}

TEST_F(HttpSink, WithoutASecretNothingIsAdded) {
    create();
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(peer_.requests().back().find("webhook-"), std::string::npos);
}

TEST_F(HttpSink, SendsNothingUnsignedWhereAKeyIsUnusable) {
    // 64 zeros: the second half is not the public key of the first.
    create({}, {{"signing_key", "whsk_" + std::string(86, 'A') + "=="}});
    const Outcome outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::destination);
    EXPECT_EQ(outcome.error, "the two halves of the signing key do not belong together");
    EXPECT_TRUE(peer_.requests().empty());
}

TEST_F(HttpSink, ThrowsBadAllocWhenMemoryRunsOutForASignature) {
    const Outcome outcome = send_without_memory(
        batch(1),
        [&] {
            create({}, {{"signing_secret", signing_secret},
                        {"signing_key", "whsk_" + std::string(43, 'A') + "="}});
        },
        allocations_until_failure, allocation_failed);
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
}

// -- outbox.allowed_hosts ---------------------------------------------------------------------

// Addresses that differ from the address of the peer only in their spelling.
std::string at_host(const std::string& url, const std::string& scheme, const std::string& host) {
    return scheme + "://" + host + url.substr(url.rfind(':'));
}

TEST_F(HttpSink, ConnectsToNoReservedAddressUnlessToldTo) {
    allowed_hosts_ = "";
    for (const char* scheme : {"http", "https"})
        for (const char* host : {"127.0.0.1",
                                 "127.1",
                                 "2130706433",
                                 "0x7f000001",
                                 "0177.0.0.01",
                                 "127.0.0.1.",
                                 "%31%32%37.0.0.1",
                                 "0.0.0.0",
                                 "0",
                                 "localhost",
                                 "LOCALHOST.",
                                 "a.localhost",
                                 "[::1]",
                                 "[::]",
                                 "[::ffff:127.0.0.1]",
                                 "[0:0:0:0:0:ffff:7f00:1]",
                                 "[::127.0.0.1]",
                                 "[64:ff9b::127.0.0.1]",
                                 "169.254.169.254",
                                 "[fe80::1%25lo]",
                                 "[fd00:ec2::254]"}) {
            create({{"url", at_host(peer_.url(), scheme, host)}});
            const Outcome outcome = send_one();
            EXPECT_NE(outcome.fate, Fate::confirmed);
            // Texts that libcurl or the resolver do not accept as addresses never get this far.
            if (outcome.error.find("resolve") == std::string::npos) {
                EXPECT_TRUE(outcome.error.starts_with("address ")) << host << ": " << outcome.error;
                EXPECT_NE(outcome.error.find("is not allowed; "), std::string::npos)
                    << host << ": " << outcome.error;
            }
        }
    EXPECT_EQ(peer_.connections(), 0);
}

TEST_F(HttpSink, SaysWhichAddressOfWhichHostIsNotAllowed) {
    allowed_hosts_ = "";
    create();
    for (int attempt = 0; attempt < 3; attempt++)
        EXPECT_EQ(
            send_one().error,
            "address 127.0.0.1 of host \"127.0.0.1\" is not allowed; set outbox.allowed_hosts to "
            "'default, 127.0.0.1'");
}

TEST_F(HttpSink, RefusesRequestsThatWaitForOneConnection) {
    allowed_hosts_ = "";
    for (const char* scheme : {"http", "https"}) {
        create({{"url", at_host(peer_.url(), scheme, "localhost")}});
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 8; i++)
                sink_->submit(batch(i));
            for (const Outcome& outcome : outcomes(8))
                EXPECT_NE(outcome.error.find("is not allowed"), std::string::npos) << outcome.error;
        }
    }
    EXPECT_EQ(peer_.connections(), 0);
}

TEST_F(HttpSink, ConnectsToAnAllowedAddressHoweverItIsWritten) {
    allowed_hosts_ = "127.0.0.0/8";
    for (const char* host : {"127.1", "2130706433", "localhost", "[::ffff:127.0.0.1]"}) {
        create({{"url", at_host(peer_.url(), "http", host)}});
        const Outcome outcome = send_one();
        EXPECT_EQ(outcome.fate, Fate::confirmed) << host << ": " << outcome.error;
    }
}

TEST_F(HttpSink, ConnectsToAnAllowedNameWhereverItIs) {
    for (const char* list : {"localhost", "example.com, LOCALHOST."}) {
        allowed_hosts_ = list;
        create({{"url", at_host(peer_.url(), "http", "localhost")}});
        const Outcome outcome = send_one();
        EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    }
}

TEST_F(HttpSink, AListForbidsEverythingElse) {
    allowed_hosts_ = "localhost, 192.0.2.0/24, *.example.com";
    for (const char* host : {"127.0.0.1", "127.1"})
        for (const char* scheme : {"http", "https"}) {
            create({{"url", at_host(peer_.url(), scheme, host)}});
            const std::string error = send_one().error;
            EXPECT_TRUE(error.starts_with("address 127.0.0.1 of host \"")) << error;
        }
    EXPECT_EQ(peer_.connections(), 0);
}

TEST_F(HttpSink, FailsInLibcurlsWordsWhereAnAddressIsAllowed) {
    create({{"url", at_host(peer_.url(), "https", "127.0.0.1")}, {"connect_timeout", "50ms"}});
    peer_.then({.bytes = "no TLS", .close = true});
    const std::string error = send_one().error;
    EXPECT_EQ(error.find("allowed"), std::string::npos) << error;
    for (int i = 0; i < 2'000 && peer_.connections() == 0; i++)  // it may not have accepted yet
        poll(nullptr, 0, 10);
    EXPECT_GT(peer_.connections(), 0);
}

TEST_F(HttpSink, CanBeDestroyedWhileRequestsAreUnderWay) {
    create();
    for (int i = 0; i < 8; i++) {
        peer_.then({.bytes = i % 2 == 0 ? "" : "HTTP/1.1 2"});
        sink_->submit(batch(i));
    }
    std::vector<Outcome> none;
    sink_->step(clock_.now(), none);
    sink_.reset();
}

}  // namespace
}  // namespace outbox
