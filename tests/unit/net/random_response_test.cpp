// Random responses are read the same way, in whatever pieces they arrive.
#include <gtest/gtest.h>

#include "net/http1_response.hpp"
#include "unit/mutations.hpp"

namespace outbox {
namespace {

struct Reading {
    Http1Response::State state = Http1Response::State::incomplete;
    int status = 0;
    bool keep_alive = false;
    std::string body;

    bool operator==(const Reading&) const = default;
};

// Reads pieces of 1 to `largest` bytes, until the response is complete or the connection closes.
Reading read(std::string_view text, Mutations& dice, std::size_t largest) {
    Http1Response response;
    Reading reading;
    while (!text.empty() && reading.state == Http1Response::State::incomplete) {
        const std::string_view piece = text.substr(0, 1 + dice.below(largest));
        reading.state = response.take(piece);
        text.remove_prefix(piece.size());
    }
    if (reading.state == Http1Response::State::incomplete)
        reading.state = response.end_of_stream();
    if (reading.state == Http1Response::State::complete) {
        reading.status = response.status();
        reading.body = response.body();
        // Bytes after the end are noticed only if they arrive in the same piece.
        reading.keep_alive = response.keep_alive() || !text.empty();
    }
    return reading;
}

TEST(RandomResponse, IsReadTheSameInWhateverPiecesItComes) {
    Mutations responses(
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 204 No Content\r\n\r\n",
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx: y\r\n\r\n",
         "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: "
         "0\r\n\r\n",
         "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nto the end"},
        "\r\n :;,0aF\t");
    int complete = 0;
    for (int i = 0; i < 50'000; i++) {
        const std::string text = responses.next();
        Mutations& dice = responses;
        const Reading bytewise = read(text, dice, 1);
        EXPECT_NE(bytewise.state, Http1Response::State::incomplete);
        if (bytewise.state != Http1Response::State::complete)
            continue;
        complete++;
        EXPECT_GE(bytewise.status, 200) << text;
        EXPECT_LE(bytewise.status, 999) << text;
        Reading in_pieces = read(text, dice, 20);
        in_pieces.keep_alive = bytewise.keep_alive;  // see read()
        EXPECT_EQ(in_pieces, bytewise) << text;
    }
    EXPECT_GT(complete, 1'000);
}

}  // namespace
}  // namespace outbox
