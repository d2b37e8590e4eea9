// Events from a queue of RabbitMQ: quorum or classic, or a stream. Messages are held, and acknowledged
// after the commit; the offset of a stream is saved in the transactions of the handlers.
//
//     auto source = std::make_unique<inbox::RabbitmqSource>(
//         inbox::RabbitmqOptions{.server = "broker:5672", .queue = "video.events"});
//
// CMake target pg_inbox::rabbitmq; needs rabbitmq-c, libcurl, OpenSSL and jsoncpp. See
// docs/client/rabbitmq.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "inbox/source.hpp"

namespace inbox {

// RabbitmqSource's constructor throws std::invalid_argument for a value out of range.
struct RabbitmqOptions {
    std::string server{};            // "host:port"; the default port is 5672, or 5671 with TLS
    std::string virtual_host = "/";  // its name
    std::string queue{};             // which must exist

    // True if the queue is a stream. Its offset is saved in the consumer's database, and
    // reading begins there.
    bool is_stream = false;
    // Where the reading of a stream begins if there is no offset: at its first message, or behind its
    // last one. The time of this beginning is saved, and is where another process begins that starts
    // before a message has come.
    enum class Start { earliest, latest };
    Start start = Start::earliest;
    // What is done if a stream was made again, or was cut back, since its offset.
    OnRecreated on_recreated = OnRecreated::begin_again;

    // Whether message_ids of digits only identify messages without an app_id. True if there is one
    // sender, and it goes on counting when it starts again. Otherwise the content and the timestamp
    // count as well, so that a message is not taken for that of another sender.
    bool counted_ids_are_unique = false;

    // Without a user: the one that the client certificate names, or guest if there is none.
    std::string user{}, password{};
    bool tls = false;
    std::string ca_file{};      // certificates to trust, in PEM; empty for those of the system
    std::string certificate{};  // of the client, as PEM
    std::string private_key{};
    std::string connection_name = "pg_inbox";  // shown in the server's list of connections

    // Messages that are held and not acknowledged, those handed out included, 1 to 10,000. They bound
    // the memory that a server can take: each has up to max_message_size, and about 300 bytes more for
    // each of its headers, of which up to 10,000 fit into a frame.
    int prefetch = 256;
    // Largest body of a message, 1 byte to 512 MiB. A larger one ends the source with an error.
    std::size_t max_message_size = 16 << 20;

    std::chrono::milliseconds connect_timeout{10'000};
    std::chrono::milliseconds request_timeout{30'000};
    // Pause after a failure. It is random, up to retry_base after the first failure, up to twice that
    // after the next, and never longer than retry_max.
    std::chrono::milliseconds retry_base{200};
    std::chrono::milliseconds retry_max{30'000};
};

// Counters since the source was made.
struct RabbitmqStats {
    std::uint64_t received = 0;     // messages
    std::uint64_t redelivered = 0;  // of these, sent before, to this consumer or another one
    std::uint64_t acked = 0;        // messages that were settled
    std::uint64_t nacked = 0;       // messages that were given back
    std::uint64_t connections = 0;  // attempts to connect
    // Most failed deliveries of a message, as a quorum queue counts them against its delivery limit.
    std::int64_t most_failed_deliveries = 0;
    std::size_t outstanding = 0;  // now: messages handed out and not settled
    std::size_t waiting = 0;      // now: messages that wait for receive()
    // Now: a message has come over this channel. The consumers of a queue with a single active consumer
    // get none until they become active.
    bool is_active = false;
};

// Thread-safety: as Source says; stats() may be called by any thread. Lifetime: one thread of its own does
// all work on the network, from open() to close().
class RabbitmqSource final : public Source {
  public:
    // Connects to nothing yet. Throws std::invalid_argument for options out of range.
    explicit RabbitmqSource(RabbitmqOptions options);
    ~RabbitmqSource() override;

    // Returns 'rabbitmq://<virtual host>/<queue>', percent-encoded, with an empty name for the virtual
    // host "/".
    std::string subscription() const override;
    // Throws SourceError if the login is refused, or the queue does not exist or must not be read. It is
    // transient only if the source was open before.
    void open() override;
    void interrupt() noexcept override;
    // Throws SourceError, not transient, for a message that is too large, if the queue is a stream
    // and is_stream is not set, or the other way round, and as on_recreated says.
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    // RabbitMQ does not learn of it: the source hands these out again itself.
    void nack(std::span<const Delivery> deliveries) override;
    // Throws SourceError, not transient, unless the queue is a stream.
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

    std::vector<Position> positions(std::span<const Delivery* const> deliveries) override;
    std::vector<Position> moved_positions() override;
    std::vector<Gap> gaps() override;
    void set_positions(LoadPositions load) override;
    std::function<bool(const Delivery&)> recall() override;

    // Returns a snapshot of the counters.
    RabbitmqStats stats() const;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
