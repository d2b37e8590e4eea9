// A pull destination of pg_outbox as a source: events come from the producer's database, without a
// broker. It calls outbox.fetch(), outbox.ack() and outbox.nack().
//
//     auto source = std::make_unique<inbox::PullSource>("dbname=shop", "catalog");
//
// The role needs outbox.grant_fetch() and USAGE on the foreign server; for seek() also
// outbox.grant_operate(). As many processes as the destination has lanes can fetch from it at once.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "inbox/connect.hpp"
#include "inbox/source.hpp"

namespace inbox {

// PullSource's constructors throw std::invalid_argument for a value out of range.
struct PullOptions {
    // Time after which the events of a process that died are handed to others; at least 100 ms.
    // Leases are extended when a third of it has passed.
    std::chrono::milliseconds lease{30'000};
    // Highest number of events in one fetch, which share a lease; 1 to 100.
    int max_events = 100;
    // Longest pause after a fetch that returned nothing; at least 1 ms. The first pause is 5 ms,
    // and each is twice as long as the one before.
    std::chrono::milliseconds poll_max{200};
    // Highest number of bytes in an answer of the producer's database; at least 1 MiB. A fetch has
    // up to 4 MiB of payloads, or one event, which is larger if outbox.max_payload_size allows that.
    // If an answer is larger, receive() throws SourceError. libpq may need several times as much
    // memory while it reads.
    std::size_t max_answer = 64 * 1024 * 1024;
};

// An event that is nacked waits for its next attempt in the producer's database, according to the
// options retry_base and retry_max of the destination. After the destination's max_attempts it
// becomes a dead letter there, so set that higher than the consumer's own max_attempts.
//
// The server is not trusted to end its answers: see max_answer. A connection is replaced after as
// many bytes.
//
// Thread-safety: as Source says. Lifetime: keeps two connections and one thread from open() to
// close().
class PullSource final : public Source {
  public:
    // `destination`: name of the foreign server with the URL 'pull:'. Connects in open(). Throws
    // std::invalid_argument if an option is out of range, or destination or connect is empty.
    // A consumer that stops waits for a connection that is being made: a factory of yours should
    // set connect_timeout. With `conninfo` it is 10 s unless that, or PGCONNECT_TIMEOUT, says
    // otherwise, and a login takes at most 1 MiB; what a factory reads is not limited.
    PullSource(ConnectionFactory connect, std::string destination, PullOptions options = {});
    PullSource(const std::string& conninfo, std::string destination, PullOptions options = {});
    ~PullSource() override;

    // Returns the name of the destination.
    std::string subscription() const override;
    std::string describe() const override;

    // open(), receive() and seek() throw SourceError. It is not transient if the destination or
    // pg_outbox does not exist, or if the role lacks a privilege.
    void open() override;
    void interrupt() noexcept override;
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    void nack(std::span<const Delivery> deliveries) override;
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
