// A subscription that is being read: the stream, the leases of what came, and what is to be said
// about it.
//
// One thread of its own, the keeper, starts whatever is due: streams, heartbeats, extensions,
// acknowledgements. It waits for nothing but its next task; answers come on threads of gRPC.
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
    // What close() has not done is left.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    std::vector<ReceivedMessage> receive(std::size_t max_messages, std::chrono::milliseconds wait);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);
    // What was read and not received is given back: it comes again if it is still to come then.
    grpc::Status seek(Call& call);
    void close(std::chrono::milliseconds limit);

    const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
    PubSubStats stats() const;

  private:
    using Lock = std::unique_lock<std::mutex>;
    void keep();
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
    // What is to be told is told when nothing is locked: a log may ask for stats().
    void note(Level level, std::string text) { notes_.push_back({level, std::move(text)}); }
    void tell_notes(Lock& lock);

    const PubSubOptions options_;
    const Log log_;
    const std::string subscription_;  // as Pub/Sub calls it
    const std::string client_id_;
    const std::shared_ptr<grpc::Channel> channel_;

    mutable std::mutex mutex_;
    std::condition_variable arrived_;  // for receive()
    std::condition_variable work_;     // for the keeper
    std::condition_variable quiet_;    // for close()
    std::minstd_rand random_{std::random_device{}()};
    PubSubStats stats_;
    std::vector<std::pair<Level, std::string>> notes_;
    bool closing_ = false;
    bool keeper_may_end_ = false;
    std::string fatal_;

    std::shared_ptr<Stream> stream_;  // none: another is opened at reopen_at_
    std::uint64_t stream_number_ = 0;
    std::size_t streams_alive_ = 0;  // with those that have been replaced
    SteadyTime reopen_at_ = SteadyTime::min();
    bool suspended_ = false;  // no other is opened
    SteadyTime stream_since_{};
    SteadyTime heartbeat_at_{};
    Backoff pauses_;       // between streams that fail in a row
    bool paused_ = false;  // nothing is read
    bool to_resume_ = false;

    bool exactly_once_ = false;
    bool ordered_ = false;
    Leases leases_;
    KeyOrder key_order_;
    // Exactly once: the lease must be confirmed before a message is anybody's.
    std::unordered_map<std::string, ReceivedMessage> unconfirmed_;
    std::deque<ReceivedMessage> waiting_;  // for receive()
    std::size_t read_bytes_ = 0;           // of the two above

    Settlements settlements_;
    std::array<std::shared_ptr<Call>, Settlements::lanes> calls_;  // under way, of settlements

    std::thread keeper_;
};

}  // namespace inbox::pubsub
