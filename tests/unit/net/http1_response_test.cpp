// Valid and invalid responses, whole and cut at every byte.
#include "net/http1_response.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

using State = Http1Response::State;

struct Parsed {
    State state;
    int status;
    bool keep_alive;
    std::string body;
    std::string retry_after;

    bool operator==(const Parsed&) const = default;
};

Parsed result_of(const Http1Response& response, State state) {
    return {state, response.status(), response.keep_alive(), std::string(response.body()),
            std::string(response.retry_after())};
}

Parsed parse(std::string_view bytes, bool closed = false) {
    Http1Response response;
    State state = response.take(bytes);
    if (state == State::incomplete && closed)
        state = response.end_of_stream();
    return result_of(response, state);
}

// Any cut in two pieces, and single bytes, must have the same result as the whole.
void expect_same_in_pieces(std::string_view bytes, bool closed = false) {
    const Parsed whole = parse(bytes, closed);
    for (std::size_t cut = 1; cut <= bytes.size(); cut++) {
        Http1Response response;
        State state = response.take(bytes.substr(0, cut));
        if (state == State::incomplete && cut < bytes.size())
            state = response.take(bytes.substr(cut));
        if (state == State::incomplete && closed)
            state = response.end_of_stream();
        if (whole.state == State::malformed)
            EXPECT_EQ(state, State::malformed) << "cut at " << cut;
        else
            EXPECT_EQ(result_of(response, state), whole) << "cut at " << cut;
    }
    Http1Response response;
    State state = State::incomplete;
    for (char c : bytes)
        if (state == State::incomplete)
            state = response.take({&c, 1});
    if (state == State::incomplete && closed)
        state = response.end_of_stream();
    EXPECT_EQ(state, whole.state);
}

TEST(Http1Response, EndsAtOnceWhereThereIsNoBody) {
    for (const char* head :
         {"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
          "HTTP/1.1 304\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 204 \n\n",
          "HTTP/1.1 204 x\nServer: y\n\n"}) {
        const Parsed parsed = parse(head);
        EXPECT_EQ(parsed.state, State::complete) << head;
        EXPECT_TRUE(parsed.keep_alive) << head;
    }
}

TEST(Http1Response, EndsItsHeadAtTheFirstEmptyLineHoweverThatEnds) {
    for (std::string_view head : {"HTTP/1.1 204 No Content\r\n\n", "HTTP/1.1 204 No Content\n\r\n",
                                  "HTTP/1.1 204 No Content\n\n"}) {
        EXPECT_EQ(parse(head).status, 204);
        const Parsed followed = parse(std::string(head) + "\r\n\r\n");
        EXPECT_EQ(followed.state, State::complete);
        EXPECT_FALSE(followed.keep_alive);
    }
}

TEST(Http1Response, TakesABodyByItsLength) {
    const std::string_view bytes =
        "HTTP/1.1 503 Busy\r\nRetry-After: 120\r\nContent-Length: 5\r\n\r\nhello";
    EXPECT_EQ(parse(bytes), (Parsed{State::complete, 503, true, "hello", "120"}));
    expect_same_in_pieces(bytes);
    EXPECT_EQ(parse(bytes.substr(0, bytes.size() - 1)).state, State::incomplete);
}

TEST(Http1Response, TakesChunksWithExtensionsAndTrailers) {
    const std::string_view bytes =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        "4;name=value\r\nwiki\r\n5 \r\npedia\r\n0\r\nTrailer: x\r\n\r\n";
    EXPECT_EQ(parse(bytes), (Parsed{State::complete, 200, true, "wikipedia", ""}));
    expect_same_in_pieces(bytes);
}

TEST(Http1Response, TakesABodyToTheEndOfTheConnection) {
    const std::string_view bytes = "HTTP/1.1 200 OK\r\n\r\nall of it";
    EXPECT_EQ(parse(bytes).state, State::incomplete);
    EXPECT_EQ(parse(bytes, true), (Parsed{State::complete, 200, false, "all of it", ""}));
    expect_same_in_pieces(bytes, true);
}

TEST(Http1Response, SkipsInterimResponses) {
    const std::string_view bytes =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nRetry-After: 9\r\nLink: x\r\n\r\n"
        "HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok";
    EXPECT_EQ(parse(bytes), (Parsed{State::complete, 202, true, "ok", ""}));
    expect_same_in_pieces(bytes);
}

TEST(Http1Response, KnowsWhetherTheConnectionCanBeUsedAgain) {
    EXPECT_FALSE(parse("HTTP/1.1 204 x\r\nConnection: close\r\n\r\n").keep_alive);
    EXPECT_FALSE(parse("HTTP/1.1 204 x\r\nconnection: Close\r\n\r\n").keep_alive);
    EXPECT_FALSE(parse("HTTP/1.0 204 x\r\n\r\n").keep_alive);
    EXPECT_TRUE(parse("HTTP/1.0 204 x\r\nConnection: keep-alive\r\n\r\n").keep_alive);
    EXPECT_FALSE(parse("HTTP/1.1 204 x\r\n\r\nsomething more").keep_alive);
    EXPECT_FALSE(
        parse("HTTP/1.1 200 x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
            .keep_alive);
}

TEST(Http1Response, RefusesMalformedResponses) {
    for (const char* bytes : {
             "garbage\r\n\r\n",
             "\r\n\r\n",
             "HTTP/2 200 OK\r\n\r\n",
             "HTTP/1.1 2000 OK\r\n\r\n",
             "HTTP/1.1 99 OK\r\n\r\n",
             "HTTP/1.1 600 OK\r\n\r\n",
             "HTTP/1.1 abc\r\n\r\n",
             "HTTP/1.1 101 Switching Protocols\r\n\r\n",
             "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
             "HTTP/1.1 200 OK\r\n: no name\r\n\r\n",
             "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
             "HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\n",
             "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
             "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
         }) {
        EXPECT_EQ(parse(bytes).state, State::malformed) << bytes;
        expect_same_in_pieces(bytes);
    }
}

TEST(Http1Response, EndsEarlyWhenTheConnectionDoes) {
    for (const char* bytes : {"", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
                              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"}) {
        Http1Response response;
        EXPECT_EQ(response.take(bytes), State::incomplete) << bytes;
        EXPECT_EQ(response.end_of_stream(), State::malformed) << bytes;
    }
}

TEST(Http1Response, KeepsAShortBodyAndEnforcesItsLimits) {
    const std::string big(Http1Response::max_body + 1, 'x');
    const Parsed parsed = parse("HTTP/1.1 500 x\r\nContent-Length: 99999999\r\n\r\n" + big);
    EXPECT_EQ(parsed.state, State::complete);
    EXPECT_FALSE(parsed.keep_alive);
    EXPECT_EQ(parsed.body.size(), usual_kept_body);

    const std::string head =
        "HTTP/1.1 200 OK\r\nX: " + std::string(Http1Response::max_around_body, 'x');
    EXPECT_EQ(parse(head).state, State::malformed);
    EXPECT_EQ(parse(head + "\r\n\r\n").state, State::malformed);
    EXPECT_EQ(parse("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + head).state,
              State::malformed);
}

TEST(Http1Response, CountsEveryByteThatIsNotTheBody) {
    const std::string ok = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    const std::string flood(Http1Response::max_around_body + 1, ' ');
    std::string trailers, small_chunks;
    while (trailers.size() <= Http1Response::max_around_body)
        trailers += "a: b\r\n";
    while (small_chunks.size() <= Http1Response::max_around_body * 6 / 5)
        small_chunks += "1\r\nx\r\n";
    for (const std::string& bytes :
         {ok + "1" + flood, ok + "1;" + flood, ok + "1\r\nA" + flood, ok + "1\r\nA\r" + flood,
          ok + "0\r\n" + flood, ok + "0\r\n" + trailers, ok + small_chunks}) {
        EXPECT_EQ(parse(bytes).state, State::malformed) << bytes.substr(0, 80);
        Http1Response response;
        State state = State::incomplete;
        for (std::size_t i = 0; i < bytes.size() && state == State::incomplete; i += 7)
            state = response.take(std::string_view(bytes).substr(i, 7));
        EXPECT_EQ(state, State::malformed) << bytes.substr(0, 80);
    }
}

TEST(Http1Response, TakesOnlySomeInterimResponses) {
    const std::string final = "HTTP/1.1 204 x\r\n\r\n";
    std::string interim;
    for (int i = 0; i < Http1Response::max_interim_responses; i++)
        interim += "HTTP/1.1 103 x\r\n\r\n";
    EXPECT_EQ(parse(interim + final).state, State::complete);
    EXPECT_EQ(parse(interim + "HTTP/1.1 100 x\r\n\r\n" + final).state, State::malformed);
    const std::string big =
        "HTTP/1.1 103 x\r\nLink: " + std::string(Http1Response::max_around_body / 2, 'x') +
        "\r\n\r\n";
    EXPECT_EQ(parse(big + final).state, State::complete);
    EXPECT_EQ(parse(big + big + final).state, State::malformed);
}

TEST(Http1Response, StartsOverAfterReset) {
    Http1Response response;
    EXPECT_EQ(response.take("HTTP/1.1 503 x\r\nRetry-After: 1\r\nContent-Length: 1\r\n\r\na"),
              State::complete);
    response.reset();
    EXPECT_FALSE(response.begun());
    EXPECT_EQ(response.take("HTTP/1.1 204 x\r\n\r\n"), State::complete);
    EXPECT_EQ(result_of(response, State::complete), (Parsed{State::complete, 204, true, "", ""}));
}

}  // namespace
}  // namespace outbox
