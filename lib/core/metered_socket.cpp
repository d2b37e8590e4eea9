#include "core/metered_socket.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace outbox {

bool MeteredSocket::insert(int socket) {
    close();
    buffer_.resize(2 * max_at_a_time);
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0)
        return false;
    const auto [of_libpq, inner] = ends;
    const int peer = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    const bool inserted = peer >= 0 && dup3(of_libpq, socket, O_CLOEXEC) >= 0;
    const int error = errno;
    ::close(of_libpq);
    if (!inserted) {
        ::close(inner);
        if (peer >= 0)
            ::close(peer);
        errno = error;
        return false;
    }
    peer_ = peer;
    inner_ = inner;
    return true;
}

void MeteredSocket::close() noexcept {
    if (peer_ >= 0)
        ::close(std::exchange(peer_, -1));
    if (inner_ >= 0)
        ::close(std::exchange(inner_, -1));
    received_ = 0;
    error_ = 0;
    sent_ = outgoing_ = 0;
    peer_reads_ = true;
}

bool MeteredSocket::remove(int socket) noexcept {
    const bool removed = dup3(peer_, socket, O_CLOEXEC) >= 0;
    if (removed)
        close();
    return removed;
}

static bool would_block(ssize_t result) noexcept {
    return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

void MeteredSocket::pull() noexcept {
    std::array<char, max_at_a_time> input;
    const ssize_t size = recv(peer_, input.data(), input.size(), MSG_DONTWAIT);
    if (would_block(size))
        return;
    const bool passed_on = size > 0 && send(inner_, input.data(), static_cast<std::size_t>(size),
                                            MSG_NOSIGNAL) == size;
    if (passed_on) {
        received_ += static_cast<std::uint64_t>(size);
        return;
    }
    if (size != 0)
        error_ = errno;
    shutdown(inner_, SHUT_WR);
}

// Bytes that were sent from this end, and that libpq has not read.
bool MeteredSocket::has_input() const noexcept {
    int unread = 0;
    return inner_ >= 0 && ioctl(inner_, SIOCOUTQ, &unread) == 0 && unread > 0;
}

void MeteredSocket::push() noexcept {
    while (peer_ >= 0 && send_outgoing()) {
        const ssize_t size = recv(inner_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
        if (would_block(size))
            return;
        if (size <= 0) {
            close();
            return;
        }
        sent_ = 0;
        outgoing_ = static_cast<std::size_t>(size);
    }
}

// Returns false if the peer takes no more. It is not a failure if the peer has stopped reading: it
// may have sent the reason, which libpq will read.
bool MeteredSocket::send_outgoing() noexcept {
    while (is_blocked()) {
        const ssize_t size = peer_reads_ ? send(peer_, buffer_.data() + sent_, outgoing_ - sent_,
                                                MSG_NOSIGNAL | MSG_DONTWAIT)
                                         : static_cast<ssize_t>(outgoing_ - sent_);
        if (size > 0)
            sent_ += static_cast<std::size_t>(size);
        else if (would_block(size))
            return false;
        else
            peer_reads_ = false;
    }
    return true;
}

}  // namespace outbox
