// Events from a subscription of Google Cloud Pub/Sub, by StreamingPull.
//
//     auto source = std::make_unique<inbox::PubSubSource>(
//         inbox::PubSubOptions{.project = "shop", .subscription = "billing"});
//
// Messages are held under leases, which are extended until the messages are settled. If the
// connection is lost, or the service ends the stream, the source opens another one by itself.
// receive() throws only if waiting cannot help: the subscription does not exist, or the account
// lacks a permission.
//
// CMake target pg_inbox::pubsub; needs gRPC. See docs/client/pubsub.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "inbox/error.hpp"
#include "inbox/source.hpp"

namespace inbox {

// PubSubSource's constructor throws std::invalid_argument for a value out of range.
struct PubSubOptions {
    std::string project;       // id of the Google Cloud project
    std::string subscription;  // id of the subscription, which must exist
    // Topic of events whose messages do not name one. Empty for the id of the subscription.
    std::string topic{};

    // Host and port of the service. If order or exactly-once delivery matter, use the endpoint of
    // the region, such as 'europe-west1-pubsub.googleapis.com:443'.
    std::string endpoint = "pubsub.googleapis.com:443";
    // Host and port of an emulator to use instead, without TLS and credentials.
    std::string emulator_host{};
    // File with the JSON key of a service account. Empty for Google's default credentials: the file
    // that GOOGLE_APPLICATION_CREDENTIALS names, those of gcloud, or the account of the machine.
    std::string key_file{};
    // File with the certificates to trust, in PEM. Empty for those of gRPC.
    std::string ca_file{};

    // Limits for messages that were received and are not settled; the service keeps them. The
    // source keeps the same limits for messages that were read and wait for receive().
    std::size_t max_outstanding_messages = 1000;
    std::size_t max_outstanding_bytes = 100 << 20;

    // Bounds of a lease, each 1 s to 600 s. Between them, a lease is as long as 99 % of the
    // messages take to be acknowledged. With exactly-once delivery it is at least 60 s, if the
    // upper bound allows it.
    std::chrono::seconds min_ack_deadline{10};
    std::chrono::seconds max_ack_deadline{600};
    // Time after which leases of a message are no longer extended, and the service gives it to
    // another consumer.
    std::chrono::seconds max_lease{3600};
    // Time between keep-alives on an idle stream. The service ends a stream that is silent for 60
    // s.
    std::chrono::milliseconds heartbeat{30'000};
    // Identifies this source to the service. Empty for a random id, the same for all its streams.
    std::string client_id{};
};

// Counters since the source was made.
struct PubSubStats {
    std::uint64_t streams = 0;    // streams that were opened
    std::uint64_t received = 0;   // messages that the service sent
    std::uint64_t acked = 0;      // acknowledgements that the service accepted
    std::uint64_t nacked = 0;     // messages that were given back
    std::uint64_t extended = 0;   // leases that were extended, the first of each message included
    std::uint64_t overtaken = 0;  // messages given back because an earlier one of their key was
    std::uint64_t expired = 0;    // leases that ended before their message was settled
    // Exactly-once delivery: messages not handed out, because another consumer had taken them over.
    std::uint64_t refused = 0;
    std::uint64_t lost_acks = 0;  // acknowledgements that did not arrive; the message comes again
    std::size_t leased = 0;       // now: messages under a lease
    std::size_t waiting = 0;      // now: messages that were read and wait for receive()
};

// Thread-safety: as Source says; stats(), create_snapshot() and seek_to_snapshot() may be called by
// any thread. Lifetime: keeps a channel and threads of its own from open() to close().
class PubSubSource final : public Source {
  public:
    // Connects to nothing yet. Throws std::invalid_argument for options out of range.
    explicit PubSubSource(PubSubOptions options);
    ~PubSubSource() override;

    // Returns 'pubsub://<project>/<subscription>'.
    std::string subscription() const override;
    // Throws SourceError, not transient, if there are no credentials. Does not wait for an answer
    // of the service; if none comes, the log says so.
    void open() override;
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    void nack(std::span<const Delivery> deliveries) override;
    // Going back needs a subscription or topic that retains acknowledged messages.
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

    // A snapshot stores the position of the subscription for at most seven days. `id` is its name
    // within the project. Creating one needs roles/pubsub.editor. The source need not be open. Both
    // throw SourceError.
    void create_snapshot(const std::string& id);
    void seek_to_snapshot(const std::string& id);

    // Returns a snapshot of the counters.
    PubSubStats stats() const;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
