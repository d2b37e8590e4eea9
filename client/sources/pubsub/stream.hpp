// One StreamingPull: messages come, heartbeats go. When it has ended another is made.
//
// gRPC allows one read and one write at a time, and wants to be told (by a hold) that such may
// begin from outside its callbacks. The hold ends with the first read that fails, because then the
// stream has ended, but not before a write that is under way.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "pubsub.pb.h"
#include "pubsub/grpc.hpp"

namespace inbox::pubsub {

class Stream final : public grpc::ClientBidiReactor<StreamingPullRequest, StreamingPullResponse> {
  public:
    // Both come on threads of gRPC. False: no more until resume().
    using Take = std::function<bool(StreamingPullResponse&)>;
    // The last call of all.
    using Ended = std::function<void(const grpc::Status&)>;

    Stream(StreamingPullRequest first, Take take, Ended ended)
        : request_(std::move(first)), take_(std::move(take)), ended_callback_(std::move(ended)) {}

    // The stream keeps itself until it has ended.
    static void start(const std::shared_ptr<Stream>& stream,
                      const std::shared_ptr<grpc::Channel>& channel);

    // Once for each time that Take said no.
    void resume();
    // Nothing, if one is still under way.
    void send_heartbeat();

    // Asks the service to end the stream, which lets it know that what it sends now is lost; Take
    // must say yes from then on, so that the end is seen. cancel() does not ask.
    void finish();
    void cancel();

  private:
    void OnReadDone(bool ok) override;
    void OnWriteDone(bool ok) override;
    void OnWritesDoneDone(bool ok) override;
    void OnDone(const grpc::Status& status) override;

    grpc::ClientContext context_;
    StreamingPullRequest request_;
    StreamingPullResponse response_;
    const Take take_;
    const Ended ended_callback_;
    std::shared_ptr<Stream> self_;

    std::mutex mutex_;  // for what follows; not held while gRPC is called
    bool reading_ = true;
    bool resumed_ = false;  // before the read was known to be over
    bool writing_ = true;
    bool finishing_ = false;
    bool ended_ = false;
};

}  // namespace inbox::pubsub
