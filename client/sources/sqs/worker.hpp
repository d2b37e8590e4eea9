// The thread of an SQS source. It does all work on the network: polls, extends, deletes, gives
// back.
//
// Protocol: as of SourceThread.
//
//   under the mutex    claims_ and queue_url_: other threads take messages, and settle them
//   only the thread    service_ with its requests under way, and the times of the next ones
//
// A turn:
//
//   under the mutex    takes changes from claims_, and starts their requests and polls, which does
//                      not block
//   without the mutex  logs, waits for answers or other threads, and works on the network
//   under the mutex    enters each answer in claims_ (finish())
//
// Answers are looked up by receipt handle, so an answer that arrives after its message was settled
// changes nothing. At the end the thread abandons polls, and waits until everything is deleted or
// given back, or close_by_.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/backoff.hpp"
#include "core/clock.hpp"
#include "inbox/source.hpp"
#include "sqs/claims.hpp"
#include "sqs/service.hpp"
#include "worker/source_thread.hpp"

namespace inbox::sqs {

struct Place {
    outbox::AwsOptions aws;
    outbox::TransportOptions transport;
    std::string queue;      // name
    std::string queue_url;  // empty if the service must be asked for it
    std::string account;    // of its owner; empty for the account of the keys
    std::string subscription;
    bool fifo = false;
};

struct Times {
    std::chrono::seconds visibility, poll;
    std::chrono::milliseconds retry_base, retry_max;
};

class Worker : public worker::SourceThread {
  public:
    Worker(Place place, Times times, std::size_t pollers);
    ~Worker() override;

    const Place& place() const { return place_; }

  private:
    void starts() override;
    bool is_known() const override { return !queue_url_.empty(); }
    std::size_t buffered() const override { return claims_.buffered(); }
    std::vector<Delivery> take(std::size_t most) override { return claims_.take(most); }
    void settle(std::span<const Delivery> deliveries) override;
    void give_back(std::span<const Delivery> deliveries) override;
    void give_back_all() override { claims_.give_back_all(clock_.now()); }
    void forget_all() override;
    int prepare() override;
    bool turn() override;
    void clean_up() noexcept override { service_.reset(); }

    // The thread's.
    bool may_end(outbox::Micros now);
    outbox::Micros send_changes(outbox::Micros now);
    outbox::Micros send_polls(outbox::Micros now);
    bool wants_to_receive() const;
    bool has_keys(outbox::Micros now);
    void look_up();
    void poll();
    void change(Claims::Batch batch);

    void finish(const Request& request, outbox::Micros now);
    void take_queue_url(const Request& request);
    bool take_messages(const Request& request, outbox::Micros now);
    void poll_failed(const Request& request, outbox::Micros now);
    bool take_answers(const Request& request, outbox::Micros now);
    void change_failed(const Request& request, outbox::Micros now);

    const Place place_;
    const Times times_;
    const std::size_t pollers_;

    // These are guarded by the mutex.
    Claims claims_;
    std::string queue_url_;

    // These belong to the thread.
    std::optional<Service> service_;
    bool has_worked_ = false;
    int refusals_ = 0;  // in a row
    outbox::Backoff poll_pauses_, change_pauses_;
    outbox::Micros poll_at_ = 0, change_at_ = 0;  // earliest times of the next requests
    std::vector<std::string> lost_attempts_;      // attempt ids of polls without an answer
};

}  // namespace inbox::sqs
