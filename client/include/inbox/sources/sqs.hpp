// Amazon SQS: long polling, one visibility timeout after the other while a message is held,
// deletion in batches. FIFO queues keep the order of their groups; standard queues have none.
//
//     inbox::SqsOptions options{.queue = "video-events.fifo", .region = "eu-west-1"};
//     inbox::Consumer consumer({.name = "catalog"}, std::make_unique<inbox::SqsSource>(options),
//     ...);
//
// Target inbox_sqs. See docs/client-sqs.md.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "inbox/source.hpp"

namespace inbox {

struct SqsOptions {
    std::string queue{};     // its name, or its URL
    std::string region{};    // empty: as the URL, AWS_REGION or AWS_DEFAULT_REGION has it
    std::string account{};   // 12 digits, whose queue it is; empty: of the keys, or the URL
    std::string endpoint{};  // another server than Amazon's: 'http://127.0.0.1:9324'

    // Empty: what the platform gives, as in docs/sqs.md.
    std::string access_key_id{};
    std::string secret_access_key{};
    std::string session_token{};
    std::string profile{};  // of the shared credentials file

    // Requests that wait for messages side by side, each for up to ten; 1 to 100.
    int pollers = 2;
    // For how long a message is ours unless it is settled or extended, which it is when half of
    // this has passed. So long it takes after a crash until it comes again. 2 s to 12 h.
    std::chrono::seconds visibility{60};
    // How long a request waits for messages: 0 to 20 s.
    std::chrono::seconds poll{20};

    std::string ca_file;  // certificates to trust; empty: the system's
    std::chrono::milliseconds connect_timeout{10'000};
    std::chrono::milliseconds request_timeout{30'000};  // for an answer, without the poll
    // Pauses after a request that failed: a random part of the first, doubled up to the second.
    std::chrono::milliseconds retry_base{200};
    std::chrono::milliseconds retry_max{30'000};
};

// Has a thread of its own for all it does over the network.
class SqsSource : public Source {
  public:
    // Throws std::invalid_argument for options that make no sense.
    explicit SqsSource(SqsOptions options);
    ~SqsSource() override;

    std::string subscription() const override;  // 'sqs://eu-west-1/video-events.fifo'
    // SourceError, not transient, where the service answers that it cannot: no such queue, no
    // permission, bad keys; transient, if it could before.
    void open() override;
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    void nack(std::span<const Delivery> deliveries) override;
    // Always throws: SQS keeps nothing of what was received.
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
