// The calls to Pub/Sub, with the names of its API.
//
// The stubs are untyped on purpose: generated stubs would have to be in Google's package.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "inbox/sources/pubsub.hpp"
#include "pubsub.pb.h"
#include "pubsub/grpc.hpp"

namespace inbox::pubsub {

// One call with one answer, whose content is ignored. Its creator keeps it until it is done.
class Call {
  public:
    using Request = std::unique_ptr<google::protobuf::MessageLite>;
    using Done = std::function<void(const grpc::Status&)>;

    Call(std::string method, Request request)
        : method_(std::move(method)), request_(std::move(request)) {}

    // `done` is called on a thread of gRPC.
    void start(const std::shared_ptr<grpc::Channel>& channel, std::chrono::milliseconds limit,
               Done done);
    grpc::Status wait(const std::shared_ptr<grpc::Channel>& channel,
                      std::chrono::milliseconds limit);
    void cancel() { context_.TryCancel(); }

  private:
    std::string method_;
    Request request_;
    Nothing answer_;
    grpc::ClientContext context_;
};

std::shared_ptr<Call> acknowledge(const std::string& subscription,
                                  const std::vector<std::string>& ack_ids);
std::shared_ptr<Call> modify_deadline(const std::string& subscription,
                                      const std::vector<std::string>& ack_ids,
                                      std::chrono::seconds deadline);
std::shared_ptr<Call> seek(const std::string& subscription, Time to);
std::shared_ptr<Call> seek(const std::string& subscription, const std::string& snapshot);
std::shared_ptr<Call> create_snapshot(const std::string& snapshot, const std::string& subscription);

// Does not connect yet. Throws SourceError, not transient, if there are no credentials.
std::shared_ptr<grpc::Channel> make_channel(const PubSubOptions& options);

}  // namespace inbox::pubsub
