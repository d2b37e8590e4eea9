// Events from a subscription of Google Cloud Pub/Sub, by StreamingPull.
//
//     auto source = std::make_unique<inbox::PubSubSource>(
//         inbox::PubSubOptions{.project = "shop", .subscription = "billing"});
//
// Messages are held under leases that are extended for as long as nobody has settled them. A
// connection that is lost, or a stream that the service ends, is opened again behind the scenes;
// what receive() throws is what no waiting mends: no such subscription, no right to it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "inbox/error.hpp"
#include "inbox/source.hpp"

namespace inbox {

struct PubSubOptions {
    std::string project;
    std::string subscription;  // its id; it must exist
    // What events get as their topic that do not say it themselves; empty: the subscription's id.
    std::string topic{};

    // Host and port. Where order or exactly-once delivery matter, the region's:
    // 'europe-west1-pubsub.googleapis.com:443'.
    std::string endpoint = "pubsub.googleapis.com:443";
    // Host and port of an emulator, instead: no TLS, no credentials.
    std::string emulator_host{};
    // JSON key of a service account; empty: Google's default credentials (the file that
    // GOOGLE_APPLICATION_CREDENTIALS names, gcloud's, the machine's service account).
    std::string key_file{};
    std::string ca_file{};  // certificates to trust; empty: those of gRPC

    // What may be received and not settled, which the service sees to; and what may be read from it
    // and wait for receive(), which is seen to here.
    std::size_t max_outstanding_messages = 1000;
    std::size_t max_outstanding_bytes = 100 << 20;

    // A lease is as long as 99 % of the messages take to be acknowledged, within these bounds;
    // where delivery is exactly once, at least 60 s, if the upper bound allows it. 1 s to 600 s.
    std::chrono::seconds min_ack_deadline{10};
    std::chrono::seconds max_ack_deadline{600};
    // After so long a message is left to its fate: the service gives it to somebody else.
    std::chrono::seconds max_lease{3600};
    // How often something is sent on an idle stream: the service ends one that is silent for 60 s.
    std::chrono::milliseconds heartbeat{30'000};
    std::string client_id{};  // empty: a random one, the same for all streams of the source
};

// Counters since the source was made.
struct PubSubStats {
    std::uint64_t streams = 0;    // opened
    std::uint64_t received = 0;   // messages the service sent
    std::uint64_t acked = 0;      // acknowledgements the service has taken
    std::uint64_t nacked = 0;     // messages that were given back
    std::uint64_t extended = 0;   // leases, the first of each message included
    std::uint64_t overtaken = 0;  // given back, because an earlier one of their key had been
    std::uint64_t expired = 0;    // leases that ended before the message was settled
    // Exactly once: messages that somebody else had got, and which were not handed out.
    std::uint64_t refused = 0;
    std::uint64_t lost_acks = 0;  // that could not be delivered: the message comes again
    std::size_t leased = 0;       // now
    std::size_t waiting = 0;      // now: read, and not received by anybody
};

class PubSubSource final : public Source {
  public:
    // Throws std::invalid_argument for options out of range.
    explicit PubSubSource(PubSubOptions options);
    ~PubSubSource() override;

    std::string subscription() const override;  // 'pubsub://<project>/<subscription>'
    // Throws SourceError, not transient, when there are no credentials. That nobody answers shows
    // in the log.
    void open() override;
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    void nack(std::span<const Delivery> deliveries) override;
    // To go back, the subscription or its topic must retain what was acknowledged.
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

    // Snapshots of the project, by their id: where the subscription stands now, to come back to
    // within seven days. To create one takes roles/pubsub.editor. Whether the source is open or
    // not. Throw SourceError.
    void create_snapshot(const std::string& id);
    void seek_to_snapshot(const std::string& id);

    PubSubStats stats() const;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
