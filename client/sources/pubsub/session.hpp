// Reads one subscription: keeps its stream open, extends the leases of its messages, and sends
// their settlements.
//
// Protocol. All state is under mutex_. The mutex is released before every call into gRPC, a Stream
// or the log, so callbacks of gRPC may lock it, and a log may call stats().
//
// * The housekeeper, a thread of the session, starts everything that is due: streams, heartbeats,
//   extensions, settlements. It waits only for the time of its next task or for `work_`.
// * Threads of gRPC deliver results: take() messages, stream_ended(), and answered() the result of
//   a settlement. They change state and notify; they start nothing.
// * Threads of the caller: receive(), ack() and nack() change state and notify the housekeeper.
//   seek() and close() also end the stream, and wait.
//
// A message has a lease in `leases_` from take() until it is settled or lost. With exactly-once
// delivery it first stays in `unconfirmed_`, until answered() confirms its first extension. Then it
// is in `waiting_`, until receive() hands it out. ack() and nack() remove the lease and add a
// settlement. A message without a lease is not ours, so settling it again has no effect, and send()
// drops its extension. Settlements keeps an extension from overtaking a request that gives back.
//
// Streams have numbers. A callback with a number other than `stream_number_` belongs to a stream
// that was replaced: its messages are given back at once, and its end changes nothing else.
//
// When the limits are reached, take() returns false, which stops reading, and sets `paused_`. The
// thread that makes room clears `paused_` and sets `to_resume_`; then the housekeeper calls
// Stream::resume(), once for each refusal. Stream::finish() and cancel() resume by themselves.
//
// When the housekeeper has ended, `calls_` is empty and `streams_alive_` is 0, no callback refers
// to the session any longer. close() waits for that, so the session may be destroyed after it.
//
// The session is the last to let go of the channel, so calls and streams let go of theirs before
// they are reported as ended. If a thread of gRPC destroys the last channel of a process, that
// thread waits for itself, and memory is used after it was freed (grpc/grpc pull request 32584).
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backoff.hpp"
#include "inbox/sources/pubsub.hpp"
#include "pubsub/channel.hpp"
#include "pubsub/key_order.hpp"
#include "pubsub/leases.hpp"
#include "pubsub/settlements.hpp"
#include "pubsub/stream.hpp"

namespace inbox::pubsub {

class Session {
  public:
    // Throws SourceError.
    Session(const PubSubOptions& options, Log log);
    // Calls close(0 ms), which abandons settlements that were not sent.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    std::vector<ReceivedMessage> receive(std::size_t max_messages, std::chrono::milliseconds wait);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);
    // Messages that were read and not received are given back. They come again if the position
    // after the seek includes them.
    grpc::Status seek(Call& call);
    void close(std::chrono::milliseconds limit);

    const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
    PubSubStats stats() const;

  private:
    using Lock = std::unique_lock<std::mutex>;
    void keep_house();
    void keep_stream(Lock& lock);
    void open_stream(Lock& lock);
    void extend_leases();
    void send(Lock& lock);
    SteadyTime next_task() const;

    bool take(std::uint64_t stream, StreamingPullResponse& response);
    void arrive(ReceivedMessage& message, SteadyTime now);
    void hand_over(ReceivedMessage message, SteadyTime now);
    bool is_full(double part) const;
    void resume_if_room();
    void stream_ended(std::uint64_t stream, const grpc::Status& status);

    void answered(Batch batch, const grpc::Status& status);
    void taken(Action action, const std::string& ack_id, SteadyTime now);
    bool refuse(const std::string& ack_id, bool transient, SteadyTime now);
    void try_again(Batch batch, const std::string& why, SteadyTime now);
    void give_up(const Batch& batch, const std::string& why);

    void give_back(const std::string& ack_id, const std::string& key, const std::string& message_id,
                   SteadyTime now);
    void give_back_waiting(const std::set<std::string>& keys, SteadyTime now);
    void give_back_read(SteadyTime now);
    void end_stream(Lock& lock, Duration limit);
    double part() { return std::uniform_real_distribution<>(0, 1)(random_); }
    // Notes a text for the log. It is logged after the mutex is released.
    void note(Level level, std::string text) { notes_.push_back({level, std::move(text)}); }
    void tell_notes(Lock& lock);

    const PubSubOptions options_;
    const Log log_;
    const std::string subscription_;  // its full name in the API
    const std::string client_id_;
    const std::shared_ptr<grpc::Channel> channel_;

    mutable std::mutex mutex_;
    std::condition_variable arrived_;  // notifies receive()
    std::condition_variable work_;     // notifies the housekeeper
    std::condition_variable quiet_;    // notifies close() and end_stream()
    std::minstd_rand random_{std::random_device{}()};
    PubSubStats stats_;
    std::vector<std::pair<Level, std::string>> notes_;
    bool closing_ = false;
    bool housekeeper_may_end_ = false;
    std::string fatal_;

    std::shared_ptr<Stream> stream_;  // nullptr if the next one is to be opened at reopen_at_
    std::uint64_t stream_number_ = 0;
    std::size_t streams_alive_ = 0;  // including replaced ones
    SteadyTime reopen_at_ = SteadyTime::min();
    bool suspended_ = false;  // no new stream is opened
    SteadyTime stream_since_{};
    SteadyTime heartbeat_at_{};
    Backoff pauses_;       // between streams that fail in a row
    bool paused_ = false;  // reading is stopped
    bool to_resume_ = false;

    bool exactly_once_ = false;
    bool ordered_ = false;
    Leases leases_;
    KeyOrder key_order_;
    // Exactly-once delivery: messages whose lease the service has not confirmed.
    std::unordered_map<std::string, ReceivedMessage> unconfirmed_;
    std::deque<ReceivedMessage> waiting_;  // for receive()
    std::size_t read_bytes_ = 0;           // size of `unconfirmed_` and `waiting_`

    Settlements settlements_;
    std::array<std::shared_ptr<Call>, Settlements::lanes> calls_;  // settlements under way

    std::thread housekeeper_;
};

}  // namespace inbox::pubsub
