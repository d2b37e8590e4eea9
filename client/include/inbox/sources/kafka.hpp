// Events from topics of Apache Kafka, or of a service that speaks its protocol, as a member of a
// consumer group.
//
//     auto source = std::make_unique<inbox::KafkaSource>(inbox::KafkaOptions{
//         .brokers = "broker1:9092,broker2:9092", .group = "catalog", .topics = {"video.events"}});
//
// A thread of its own polls the brokers, also while handlers are slow. A partition's offset is
// committed up to the first record that is not applied. When another consumer gets a partition,
// records that no handler has begun with are dropped, and the others are waited for.
//
// CMake target pg_inbox::kafka; needs librdkafka 2.0 or later. See docs/client/kafka.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "inbox/error.hpp"
#include "inbox/source.hpp"

namespace inbox {

// KafkaSource's constructor throws std::invalid_argument for a value out of range.
struct KafkaOptions {
    std::string brokers;              // 'host:port,host:port', to begin with
    std::string group;                // consumer group; processes with the same one share the work
    std::vector<std::string> topics;  // names; one that begins with ^ is a regular expression

    // True if offsets are saved in the consumer's database, one for each partition, in the
    // transactions of the handlers, and reading begins there. Otherwise it begins where the group
    // has committed.
    bool offsets_in_database = false;
    // Where reading begins in a partition that has no offset: at its first record, or behind the
    // last one that it has when this process gets it. That offset is committed before anything is
    // read, so that a restart does not begin at a later one.
    enum class Start { earliest, latest };
    Start start = Start::earliest;
    // What is done if a topic was made again, or was cut back, since its position.
    OnRecreated on_recreated = OnRecreated::begin_again;

    // TLS. Empty for the certificates of the system, and for no client certificate. All are files
    // in PEM.
    bool tls = false;
    std::string ca_file{};
    std::string certificate_file{};
    std::string private_key_file{};
    // 'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512'. Empty if there is no login.
    std::string sasl_mechanism{};
    std::string user{};
    std::string password{};

    std::string client_id = "pg_inbox";
    // Name of this process in the group, for static membership: its partitions wait for it while it
    // restarts. Empty for none.
    std::string instance_id{};
    // Time without a heartbeat after which the brokers give the partitions of a dead process to
    // others, 1 s to 30 min. They limit it too.
    std::chrono::milliseconds session_timeout{45'000};
    // Time between commits of offsets, 10 ms to 1 h.
    std::chrono::milliseconds commit_interval{1'000};
    // Time that handlers which have begun get when a partition goes to another process. More than
    // 0, and less than max.poll.interval.ms.
    std::chrono::milliseconds revoke_limit{30'000};
    // Limit for records that were fetched and not received. Up to that much again is on its way
    // from each broker. 1 MiB to 1 GiB.
    std::size_t prefetch_bytes = 16 << 20;

    // Further properties of librdkafka, which take precedence over those that are made from the
    // options above.
    std::map<std::string, std::string> properties{};
};

// Counters since the source was made.
struct KafkaStats {
    std::uint64_t received = 0;     // records that were read
    std::uint64_t acked = 0;        // records that were settled
    std::uint64_t nacked = 0;       // records that were given back
    std::uint64_t commits = 0;      // requests that committed offsets
    std::uint64_t assignments = 0;  // times that partitions were assigned
    std::uint64_t revocations = 0;  // times that partitions were taken away
    std::uint64_t lost = 0;       // of those, without warning: the group took this process for dead
    std::size_t partitions = 0;   // now: partitions of this process
    std::size_t outstanding = 0;  // now: records handed out and not settled
    std::size_t waiting = 0;      // now: records that were read and wait for receive()
    // Now: records of these partitions that are not applied, by the ends that the brokers told with
    // the last records.
    std::int64_t lag = 0;
};

// Thread-safety: as Source says; stats() may be called by any thread. Lifetime: keeps a thread of
// its own, and those of librdkafka, from open() to close().
class KafkaSource final : public Source {
  public:
    // Connects to nothing yet. Throws std::invalid_argument for options out of range.
    explicit KafkaSource(KafkaOptions options);
    ~KafkaSource() override;

    // Returns 'kafka://<group>'. The offset of a partition is saved under
    // 'kafka://<group>/<topic>/<partition>'.
    std::string subscription() const override;
    // Does not wait for an answer of the brokers; if none comes, the log says so. Throws
    // SourceError, not transient, if librdkafka refuses a property.
    void open() override;
    // Throws SourceError, not transient, if the brokers refuse login or access before the source
    // has ever had a partition, and as on_recreated says.
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    void nack(std::span<const Delivery> deliveries) override;
    // Throws SourceError, not transient, unless this process has all partitions of its topics.
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

    std::vector<Position> positions(std::span<const Delivery* const> deliveries) override;
    std::vector<Position> moved_positions() override;
    std::vector<Gap> gaps() override;
    void set_positions(LoadPositions load) override;
    std::function<bool(const Delivery&)> recall() override;

    // Returns a snapshot of the counters.
    KafkaStats stats() const;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
