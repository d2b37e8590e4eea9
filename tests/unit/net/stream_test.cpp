// Bytes over TCP: what is sent arrives, what arrives is read, ends and limits are noticed. TLS is tested
// with real brokers.
#include "net/stream.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "unit/drive.hpp"
#include "unit/loopback.hpp"

namespace outbox {
namespace {

class StreamTest : public testing::Test {
  protected:
    StreamTest() {
        initialize_curl();
        int number = 0;
        listener_ = listen_on_loopback(number, 8, SOCK_NONBLOCK);
        port_ = std::to_string(number);
    }

    ~StreamTest() override {
        close(listener_);
        if (peer_ >= 0)
            close(peer_);
    }

    void make(std::size_t max_input = Stream::usual_max_input, bool tls = false) {
        TransportOptions options;
        options.allowed_hosts = AllowedHosts::parse("127.0.0.1").value();
        stream_.emplace(stream_config(options, clock_, host_, port_, tls, "thing"), max_input);
        stream_->open();
    }

    template <class Condition>
    void step_until(Condition condition) {
        const Micros give_up = clock_.now() + patience;
        while (!condition() && clock_.now() < give_up) {
            pollfd watched{stream_->descriptor(), POLLIN, 0};
            if (stream_->deadline() > clock_.now())
                poll(&watched, 1, 10);
            stream_->step(clock_.now());
        }
        ASSERT_TRUE(condition()) << stream_->failure();
    }

    void connect() {
        step_until([&] { return stream_->state() == Stream::State::open; });
        peer_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        ASSERT_GE(peer_, 0);
    }

    void peer_sends(const std::string& bytes) {
        ASSERT_EQ(send(peer_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(bytes.size()));
    }

    SystemClock clock_;
    int listener_ = -1, peer_ = -1;
    std::string host_ = "127.0.0.1", port_;
    std::optional<Stream> stream_;
};

TEST_F(StreamTest, BytesGoBothWays) {
    make();
    connect();
    stream_->output() += "hello";
    stream_->flush();
    char got[5];
    ASSERT_EQ(recv(peer_, got, sizeof got, MSG_WAITALL), 5);
    EXPECT_EQ(std::string(got, 5), "hello");
    EXPECT_EQ(stream_->unsent(), 0u);
    peer_sends("world!");
    step_until([&] { return stream_->input().size() == 6; });
    stream_->consume(5);
    peer_sends("?");
    step_until([&] { return stream_->input() == "!?"; });
}

// Options refuse them, but a peer may name one.
TEST_F(StreamTest, AnInvalidHostNameIsAFailure) {
    for (const char* host : {"", "a b", "127.0.0.1/", "u@127.0.0.1", "[", "a:b", "%"})
        for (const bool tls : {false, true}) {
            host_ = host;
            make(Stream::usual_max_input, tls);
            step_until([&] { return stream_->state() == Stream::State::closed; });
            EXPECT_NE(stream_->failure(), "") << host;
        }
}

TEST_F(StreamTest, APeerThatDoesNotReadLeavesBytesUnsent) {
    make();
    connect();
    const std::string much(32 * 1024 * 1024, 'x');
    stream_->output() = much;
    stream_->flush();
    EXPECT_GT(stream_->unsent(), 0u);
    stream_->output() += "end";  // while libcurl has a part of what came before
    std::string got;
    char buffer[256 * 1024];
    step_until([&] {
        const ssize_t size = recv(peer_, buffer, sizeof buffer, MSG_DONTWAIT);
        if (size > 0)
            got.append(buffer, static_cast<std::size_t>(size));
        return got.size() == much.size() + 3;
    });
    EXPECT_EQ(got, much + "end");
    EXPECT_EQ(stream_->unsent(), 0u);
}

TEST_F(StreamTest, ReadsNoMoreThanTheOwnerTakes) {
    constexpr std::size_t limit = 64 * 1024, slack = 64 * 1024;
    make(limit);
    connect();
    const std::string much(4 * 1024 * 1024, 'x');
    std::size_t sent = 0, taken = 0;
    for (int round = 0; round < 200; round++) {
        const ssize_t size =
            send(peer_, much.data(), much.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += size > 0 ? static_cast<std::size_t>(size) : 0;
        stream_->step(clock_.now());
        ASSERT_LE(stream_->input().size(), limit + slack);
    }
    EXPECT_GE(stream_->input().size(), limit);
    step_until([&] {
        taken += stream_->input().size();
        stream_->consume(stream_->input().size());
        return taken == sent;
    });
}

TEST_F(StreamTest, WhatCameBeforeTheEndIsRead) {
    make();
    connect();
    peer_sends("last words");
    close(peer_);
    peer_ = -1;
    step_until([&] { return !stream_->failure().empty(); });
    EXPECT_EQ(stream_->input(), "last words");
    EXPECT_EQ(stream_->failure(), "the peer closed the connection");
    EXPECT_EQ(stream_->scope(), Scope::connection);
    stream_->open();
    EXPECT_EQ(stream_->input(), "");
    connect();
}

TEST_F(StreamTest, ConnectsOnlyWhereItMay) {
    TransportOptions options;
    options.allowed_hosts = AllowedHosts::parse("192.0.2.1").value();
    stream_.emplace(stream_config(options, clock_, "127.0.0.1", port_, false, "thing"));
    stream_->open();
    step_until([&] { return !stream_->failure().empty(); });
    EXPECT_NE(stream_->failure().find("allowed_hosts"), std::string::npos) << stream_->failure();
}

TEST_F(StreamTest, NamesThePlainSchemeWhenThePeerDoesNotSpeakTls) {
    make(Stream::usual_max_input, /*tls=*/true);
    step_until([&] {
        if (peer_ < 0)
            peer_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (peer_ >= 0)
            send(peer_, "INFO {}\r\n", 9, MSG_NOSIGNAL);
        return !stream_->failure().empty();
    });
    EXPECT_NE(stream_->failure().find("thing://"), std::string::npos) << stream_->failure();
}

}  // namespace
}  // namespace outbox
