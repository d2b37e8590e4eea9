// MeteredSocket between this process, in the place of libpq, and a peer.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "core/metered_socket.hpp"

namespace outbox {
namespace {

class MeteredSocketTest : public testing::Test {
  protected:
    MeteredSocketTest() {
        std::array<int, 2> ends{};
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
        libpq_ = ends[0];
        peer_ = ends[1];
        EXPECT_TRUE(socket_.insert(libpq_));
    }
    ~MeteredSocketTest() override {
        ::close(libpq_);
        ::close(peer_);
    }

    static void write(int descriptor, const std::string& data) {
        ASSERT_EQ(send(descriptor, data.data(), data.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(data.size()));
    }

    // Returns what can be read without waiting.
    static std::string read(int descriptor) {
        std::string all;
        std::array<char, 4096> piece;
        for (ssize_t size = 0; (size = recv(descriptor, piece.data(), piece.size(), 0)) > 0;)
            all.append(piece.data(), static_cast<std::size_t>(size));
        return all;
    }

    int libpq_ = -1;
    int peer_ = -1;
    MeteredSocket socket_;
};

TEST_F(MeteredSocketTest, NothingArrivesByItself) {
    write(peer_, "hello");
    EXPECT_EQ(read(libpq_), "");
    EXPECT_FALSE(socket_.has_input());
    socket_.pull();
    EXPECT_TRUE(socket_.has_input());
    EXPECT_EQ(socket_.received(), 5u);
    EXPECT_EQ(read(libpq_), "hello");
    EXPECT_FALSE(socket_.has_input());
}

TEST_F(MeteredSocketTest, TakesAPieceAtATime) {
    write(peer_, std::string(40'000, 'x'));
    socket_.pull();
    EXPECT_EQ(read(libpq_).size(), 32u * 1024);
    socket_.pull();
    EXPECT_EQ(read(libpq_).size(), 40'000u - 32 * 1024);
}

TEST_F(MeteredSocketTest, KeepsWhatThePeerDoesNotTakeYet) {
    std::string all;
    while (!socket_.is_blocked()) {
        const std::string piece(10'000, static_cast<char>('a' + all.size() / 10'000 % 26));
        write(libpq_, piece);
        all += piece;
        socket_.push();
    }
    std::string arrived;
    while (arrived.size() < all.size()) {
        const std::string piece = read(peer_);
        ASSERT_FALSE(piece.empty());
        arrived += piece;
        socket_.push();
    }
    EXPECT_EQ(arrived, all);
    EXPECT_FALSE(socket_.is_blocked());
}

TEST_F(MeteredSocketTest, GivesLibpqItsConnectionBack) {
    EXPECT_TRUE(socket_.remove(libpq_));
    EXPECT_EQ(socket_.descriptor(), -1);
    write(peer_, "hello");
    EXPECT_EQ(read(libpq_), "hello");
    write(libpq_, "and back");
    EXPECT_EQ(read(peer_), "and back");
}

TEST_F(MeteredSocketTest, LibpqReadsTheLastWordsOfAPeer) {
    write(peer_, "goodbye");
    ::close(std::exchange(peer_, -1));
    write(libpq_, "nobody reads this");
    socket_.push();
    socket_.pull();
    EXPECT_EQ(read(libpq_), "goodbye");
    socket_.pull();
    char byte = 0;
    EXPECT_EQ(recv(libpq_, &byte, 1, 0), 0);
}

TEST_F(MeteredSocketTest, ThePeerReadsTheLastWordsOfLibpq) {
    write(libpq_, "goodbye");
    ::close(std::exchange(libpq_, -1));
    socket_.push();
    EXPECT_EQ(socket_.descriptor(), -1);
    EXPECT_EQ(read(peer_), "goodbye");
    char byte = 0;
    EXPECT_EQ(recv(peer_, &byte, 1, 0), 0);
}

}  // namespace
}  // namespace outbox
