// Stands between libpq and its peer, and decides how much libpq reads.
//
// Once libpq knows the length of a long message, it reads for as long as more comes. While a peer
// sends as fast as libpq reads, that call does not return, and takes up to a gigabyte. So libpq is
// given one end of a pair of local sockets in place of its connection, under the same descriptor.
// The connection itself and the other end belong to this object, which moves bytes between the two.
// Nothing arrives for libpq but by pull().
//
// One thread at a time: libpq may work in another thread (LoginStep) between two calls.
#pragma once

#include <cstdint>
#include <vector>

namespace outbox {

class MeteredSocket {
  public:
    MeteredSocket() = default;
    ~MeteredSocket() { close(); }
    MeteredSocket(const MeteredSocket&) = delete;
    MeteredSocket& operator=(const MeteredSocket&) = delete;

    // `socket` is a connected, non-blocking socket of libpq, watched by nobody. May throw
    // std::bad_alloc. Returns false, with errno, if there are no descriptors left.
    bool insert(int socket);
    void close() noexcept;
    // Gives libpq its connection back, under the same descriptor, between two statements. Returns
    // false, with errno, if that fails.
    bool remove(int socket) noexcept;

    // The connection to the peer; -1 before insert(), and after libpq closed its end.
    int descriptor() const noexcept { return peer_; }
    // Bytes that came from the peer.
    std::uint64_t received() const noexcept { return received_; }
    // The errno of a connection that broke, or 0. libpq sees its end.
    int error() const noexcept { return error_; }

    // Moves what has arrived to libpq, at most `max_at_a_time` bytes. Not while has_input().
    void pull() noexcept;
    // Bytes wait for libpq.
    bool has_input() const noexcept;
    // Moves what libpq has written to the peer, as far as that takes it. Notices if libpq closed
    // its end.
    void push() noexcept;
    // The peer takes no more at the moment.
    bool is_blocked() const noexcept { return sent_ < outgoing_; }

  private:
    static constexpr std::size_t max_at_a_time = 32 * 1024;

    bool send_outgoing() noexcept;

    int peer_ = -1;
    int inner_ = -1;  // the end of the pair that is not libpq's
    std::uint64_t received_ = 0;
    int error_ = 0;
    std::vector<char> buffer_;  // [sent_, outgoing_) is still to be sent to the peer
    std::size_t sent_ = 0;
    std::size_t outgoing_ = 0;
    bool peer_reads_ = true;
};

}  // namespace outbox
