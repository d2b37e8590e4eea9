// A pull destination of pg_outbox (outbox.fetch, ack, nack) as a source: events come from the
// producer's database, with no broker between.
//
//     inbox::PullSource source([] { return PQconnectdb("dbname=shop"); }, "catalog");
//
// The role needs outbox.grant_fetch and USAGE on the foreign server; for seek(),
// outbox.grant_operate. Several processes may fetch from one destination, as many as it has lanes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "inbox/connect.hpp"
#include "inbox/source.hpp"

namespace inbox {

struct PullOptions {
    // Events whose process dies are handed to others after so long. Leases are extended at a third.
    std::chrono::milliseconds lease{30'000};
    // At a time, and under one lease: 1 to 100.
    int max_events = 100;
    // When there was nothing it is looked again after 5 ms, twice that, ..., up to this.
    std::chrono::milliseconds poll_max{200};
};

// What is nacked waits for its next attempt in the producer's database, with the options of the
// destination (retry_base, retry_max), and becomes a dead letter there after its max_attempts: let
// them be more than those of the consumer.
class PullSource final : public Source {
  public:
    // Keeps two connections. Throws std::invalid_argument for options out of range.
    PullSource(ConnectionFactory connect, std::string destination, PullOptions options = {});
    PullSource(const std::string& conninfo, std::string destination, PullOptions options = {});
    ~PullSource() override;

    std::string subscription() const override;  // the destination's name
    std::string describe() const override;
    void open() override;
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
