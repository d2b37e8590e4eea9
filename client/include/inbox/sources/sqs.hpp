// Events from a queue of Amazon SQS. Messages are received by long polling, their visibility
// timeouts are extended until they are settled, and acknowledged messages are deleted in batches. A
// FIFO queue keeps the order of its message groups; a standard queue keeps no order.
//
//     auto source = std::make_unique<inbox::SqsSource>(
//         inbox::SqsOptions{.queue = "video-events.fifo", .region = "eu-west-1"});
//
// CMake target pg_inbox::sqs; needs libcurl, OpenSSL and jsoncpp. See docs/client/sqs.md.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "inbox/source.hpp"

namespace inbox {

// SqsSource's constructor throws std::invalid_argument for a value out of range.
struct SqsOptions {
    std::string queue{};   // name or URL of the queue
    std::string region{};  // empty for the one in the URL, AWS_REGION or AWS_DEFAULT_REGION
    // Owner of the queue, 12 digits; empty for the one of the keys or in the URL.
    std::string account{};
    // URL of a server other than Amazon's, such as 'http://127.0.0.1:9324'.
    std::string endpoint{};

    // Credentials. Empty for those of the platform; docs/destinations/sqs.md has the order.
    std::string access_key_id{};
    std::string secret_access_key{};
    std::string session_token{};
    std::string profile{};  // section of the shared credentials file

    // Number of requests that wait for messages at the same time, each for up to ten; 1 to 100.
    int pollers = 2;
    // Visibility timeout of a message, 2 s to 12 h. It is extended when half of it has passed.
    // After a crash of the consumer, a message comes again when the rest has passed.
    std::chrono::seconds visibility{60};
    // Time that a request waits for messages, 0 to 20 s.
    std::chrono::seconds poll{20};

    // File with the certificates to trust, in PEM. Empty for those of the system.
    std::string ca_file{};
    std::chrono::milliseconds connect_timeout{10'000};
    // Timeout of a request. A poll may take `poll` longer.
    std::chrono::milliseconds request_timeout{30'000};
    // Pause after a failed request. It is random, up to retry_base after the first failure, up to
    // twice that after the next, and never longer than retry_max.
    std::chrono::milliseconds retry_base{200};
    std::chrono::milliseconds retry_max{30'000};
};

// Thread-safety: as Source says. Lifetime: one thread of its own does all work on the network, from
// open() to close().
class SqsSource : public Source {
  public:
    // Connects to nothing yet. Throws std::invalid_argument for options out of range.
    explicit SqsSource(SqsOptions options);
    ~SqsSource() override;

    // Returns 'sqs://<region>/<queue>'.
    std::string subscription() const override;
    // Throws SourceError if the service refuses: the queue does not exist, a permission is missing,
    // the keys are wrong. It is transient only if the source was open before.
    void open() override;
    void interrupt() noexcept override;
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    void nack(std::span<const Delivery> deliveries) override;
    // Always throws SourceError, not transient: SQS does not keep deleted messages.
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
