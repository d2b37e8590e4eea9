// Events from a stream of NATS JetStream, by way of a durable pull consumer. Messages are fetched ahead
// within a budget, kept while they are worked on ("in progress"), and acknowledged after the commit.
//
//     auto source = std::make_unique<inbox::NatsSource>(
//         inbox::NatsOptions{.servers = "nats1:4222,nats2:4222", .stream = "ORDERS", .consumer = "catalog"});
//
// CMake target pg_inbox::nats; needs libcurl, OpenSSL and jsoncpp. See docs/client/nats.md.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "inbox/source.hpp"

namespace inbox {

// NatsSource's constructor throws std::invalid_argument for a value out of range.
struct NatsOptions {
    std::string servers{};   // "host:port,host:port"; the default port is 4222
    std::string stream{};    // its name
    std::string consumer{};  // name of a durable pull consumer of the stream, which must exist

    // How to log in: one of these, or none.
    std::string user{}, password{};
    std::string token{};
    std::string nkey_seed{};
    std::string credentials{};  // text of a .creds file

    bool tls = false;
    bool tls_handshake_first = false;  // for servers with handshake_first
    std::string ca_file{};      // certificates to trust, in PEM; empty for those of the system
    std::string certificate{};  // of the client, as PEM
    std::string private_key{};
    std::string inbox_prefix = "_INBOX";  // where the user may subscribe

    // Messages that are fetched ahead of those handed out, 1 to 10,000.
    int prefetch = 256;
    // True if the server has to confirm each acknowledgement. One without an answer is sent again.
    bool double_ack = false;
    // What is done if the consumer was made again, perhaps with its stream.
    OnRecreated on_recreated = OnRecreated::begin_again;

    std::chrono::milliseconds connect_timeout{10'000};
    std::chrono::milliseconds request_timeout{30'000};
    // Pause after a failure. It is random, up to retry_base after the first failure, up to twice that
    // after the next, and never longer than retry_max.
    std::chrono::milliseconds retry_base{200};
    std::chrono::milliseconds retry_max{30'000};
};

// Thread-safety: as Source says. Lifetime: one thread of its own does all work on the network, from
// open() to close().
class NatsSource : public Source {
  public:
    // Connects to nothing yet. Throws std::invalid_argument for options out of range.
    explicit NatsSource(NatsOptions options);
    ~NatsSource() override;

    // Returns 'nats://<stream>/<consumer>'.
    std::string subscription() const override;
    // Throws SourceError if the login is refused, the consumer does not exist, or is one that pushes or
    // needs no acknowledgements. It is transient only if the source was open before.
    void open() override;
    void interrupt() noexcept override;
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    void nack(std::span<const Delivery> deliveries) override;
    // Always throws SourceError, not transient: a durable consumer cannot go back.
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

    std::vector<Position> positions(std::span<const Delivery* const> deliveries) override;
    void set_positions(LoadPositions load) override;
    std::vector<Gap> gaps() override;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
