// One StreamingPull: messages come, heartbeats go. After its end another one is made.
//
// Protocol. gRPC allows one read and one write at a time, which `reading_` and `writing_` record.
// They start as true, because start() begins one of each, so finish() may be called even before
// start(). Both are begun outside of gRPC's callbacks too, so gRPC needs a hold on the stream. The
// hold is released after the first read that fails, because the stream has ended then, but not
// before a write that is under way has ended. mutex_ guards the flags. It is never held during a
// call into gRPC or a callback of the session.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "pubsub.pb.h"
#include "pubsub/grpc.hpp"

namespace inbox::pubsub {

class Stream final : public grpc::ClientBidiReactor<StreamingPullRequest, StreamingPullResponse> {
  public:
    // Both are called on threads of gRPC. Take returns false to stop reading until resume().
    using Take = std::function<bool(StreamingPullResponse&)>;
    // The last call. The stream is not used afterwards, and owns itself no longer.
    using Ended = std::function<void(const grpc::Status&)>;

    Stream(StreamingPullRequest first, Take take, Ended ended)
        : request_(std::move(first)), take_(std::move(take)), ended_callback_(std::move(ended)) {}

    // The stream owns itself until it has ended.
    static void start(const std::shared_ptr<Stream>& stream,
                      const std::shared_ptr<grpc::Channel>& channel);

    // Must be called once for each time that Take returned false.
    void resume();
    // Does nothing if a write is under way.
    void send_heartbeat();

    // finish() asks the service to end the stream, so that the service knows that later messages
    // are lost. cancel() ends it without asking. Take must return true from then on, so that the
    // end is noticed.
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
    Ended ended_callback_;
    std::shared_ptr<Stream> self_;

    std::mutex mutex_;  // for the following members; not held while gRPC is called
    bool reading_ = true;
    bool resumed_ = false;  // resume() was called before the read had ended
    bool writing_ = true;
    bool finishing_ = false;
    bool ended_ = false;
};

}  // namespace inbox::pubsub
