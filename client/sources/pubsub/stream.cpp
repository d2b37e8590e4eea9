#include "pubsub/stream.hpp"

#include <utility>

#include "core/signals.hpp"

namespace inbox::pubsub {

void Stream::start(const std::shared_ptr<Stream>& stream,
                   const std::shared_ptr<grpc::Channel>& channel) {
    stream->self_ = stream;
    grpc::TemplatedGenericStub<StreamingPullRequest, StreamingPullResponse>(channel)
        .PrepareBidiStreamingCall(&stream->context_, "/google.pubsub.v1.Subscriber/StreamingPull",
                                  {}, stream.get());
    stream->AddHold();
    stream->StartWrite(&stream->request_);
    stream->StartRead(&stream->response_);
    stream->StartCall();
}

void Stream::OnReadDone(bool ok) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!ok) {
        lock.lock();
        ended_ = true;
        const bool last = !writing_;
        lock.unlock();
        if (last)
            RemoveHold();
        return;
    }
    bool more = take_(response_);
    response_.Clear();
    if (!more) {
        lock.lock();
        more = reading_ = std::exchange(resumed_, false);
        lock.unlock();
    }
    if (more)
        StartRead(&response_);
}

void Stream::resume() {
    {
        const std::lock_guard lock(mutex_);
        if (reading_) {
            resumed_ = true;
            return;
        }
        reading_ = true;
    }
    StartRead(&response_);
}

void Stream::send_heartbeat() {
    {
        const std::lock_guard lock(mutex_);
        if (writing_ || finishing_ || ended_)
            return;
        writing_ = true;
    }
    request_.Clear();
    StartWrite(&request_);
}

void Stream::finish() {
    const outbox::SignalsBlocked blocked;
    bool now = false;
    {
        const std::lock_guard lock(mutex_);
        if (!std::exchange(finishing_, true) && !writing_ && !ended_)
            now = writing_ = true;
    }
    if (now)
        StartWritesDone();
    resume();
}

void Stream::cancel() {
    const outbox::SignalsBlocked blocked;
    context_.TryCancel();
    resume();
}

void Stream::OnWriteDone(bool) {
    std::unique_lock lock(mutex_);
    const bool finish = finishing_ && !ended_;
    writing_ = finish;
    const bool last = ended_;
    lock.unlock();
    if (finish)
        StartWritesDone();
    if (last)
        RemoveHold();
}

void Stream::OnWritesDoneDone(bool) {
    std::unique_lock lock(mutex_);
    writing_ = false;
    const bool last = ended_;
    lock.unlock();
    if (last)
        RemoveHold();
}

void Stream::OnDone(const grpc::Status& status) {
    const Ended ended = std::move(ended_callback_);
    self_.reset();  // and with it the context's reference to the channel
    ended(status);
}

}  // namespace inbox::pubsub
