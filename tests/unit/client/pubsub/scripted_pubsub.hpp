// Pub/Sub's subscriber interface on loopback, which does what a test tells it. The test plays the
// service: it takes a stream, sends messages on it and ends it. Calls are answered with success unless
// the test has said otherwise.
//
// gRPC calls back on threads of its own. All state is under one mutex of the service; it is recursive,
// because gRPC may call back from inside a call. Reactors live as long as the service, so that a test
// may look at one that has ended.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pubsub.pb.h"

namespace inbox::pubsub {

template <typename Message>
Message parsed(const grpc::ByteBuffer& buffer) {
    std::vector<grpc::Slice> slices;
    static_cast<void>(buffer.Dump(&slices));
    std::string bytes;
    for (const grpc::Slice& slice : slices)
        bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    Message message;
    EXPECT_TRUE(message.ParseFromString(bytes));
    return message;
}

inline grpc::ByteBuffer serialized(const google::protobuf::MessageLite& message) {
    const grpc::Slice slice(message.SerializeAsString());
    return {&slice, 1};
}

// For what a test expects to happen.
constexpr std::chrono::seconds patience{120};

class ScriptedPubSub final : public grpc::CallbackGenericService {
  public:
    using Now = std::chrono::steady_clock::time_point;

    // A call with one answer.
    struct Called {
        std::string method;
        grpc::ByteBuffer request;
        std::vector<std::string> ack_ids{};
        int seconds = -1;  // of ModifyAckDeadline; 0: it gives back
    };
    using Answer = std::function<grpc::Status(const Called&)>;

    // One StreamingPull, from the service's side.
    class Stream final : public grpc::ServerGenericBidiReactor {
      public:
        explicit Stream(ScriptedPubSub& service) : service_(service) { StartRead(&incoming_); }

        void send(const StreamingPullResponse& response) {
            const std::lock_guard lock(service_.mutex_);
            outgoing_.push_back(serialized(response));
            go_on();
        }
        // After what was sent.
        void end(grpc::StatusCode code) {
            const std::lock_guard lock(service_.mutex_);
            end_with(grpc::Status(code, "as the test wants it"));
        }

        // The first request says what is read; heartbeats follow.
        StreamingPullRequest first() const {
            const std::lock_guard lock(service_.mutex_);
            return requests_.front().first;
        }
        std::vector<std::pair<StreamingPullRequest, Now>> requests() const {
            const std::lock_guard lock(service_.mutex_);
            return requests_;
        }
        // By the client, or by end().
        bool closed() const {
            const std::lock_guard lock(service_.mutex_);
            return closed_;
        }

      private:
        friend class ScriptedPubSub;

        void OnReadDone(bool ok) override {
            const std::lock_guard lock(service_.mutex_);
            if (!ok) {  // the client has finished
                end_with(grpc::Status::OK);
                return;
            }
            requests_.emplace_back(parsed<StreamingPullRequest>(incoming_),
                                   std::chrono::steady_clock::now());
            service_.changed_.notify_all();
            StartRead(&incoming_);
        }
        void OnWriteDone(bool) override {
            const std::lock_guard lock(service_.mutex_);
            writing_ = false;
            outgoing_.pop_front();
            go_on();
        }
        void OnCancel() override {
            const std::lock_guard lock(service_.mutex_);
            is_cancelled_ = true;
            end_with(grpc::Status::CANCELLED);
        }
        void OnDone() override { service_.done(); }

        void end_with(const grpc::Status& status) {
            closed_ = true;
            service_.changed_.notify_all();
            if (!end_)
                end_ = status;
            go_on();
        }
        void go_on() {
            if (writing_ || finished_)
                return;
            if (!outgoing_.empty() && !is_cancelled_) {
                writing_ = true;
                StartWrite(&outgoing_.front());
            } else if (end_) {
                finished_ = true;
                Finish(*end_);
            }
        }

        ScriptedPubSub& service_;
        grpc::ByteBuffer incoming_;
        std::deque<grpc::ByteBuffer> outgoing_;  // the first is being written, if writing_
        std::vector<std::pair<StreamingPullRequest, Now>> requests_;
        std::optional<grpc::Status> end_;
        bool writing_ = false;
        bool finished_ = false;
        bool closed_ = false;
        bool is_cancelled_ = false;
    };

    ScriptedPubSub() {
        grpc::ServerBuilder builder;
        builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
        builder.RegisterCallbackGenericService(this);
        server_ = builder.BuildAndStart();
    }
    ~ScriptedPubSub() {
        let_go();
        server_->Shutdown(std::chrono::system_clock::now());
        server_->Wait();
        wait([&] { return alive_ == 0; }, "the end of all calls");
    }

    std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

    // -- What it is told ---------------------------------------------------------------------------

    // Waits for the next stream that the source opens, and its first request: one that ends before is
    // never read.
    Stream& next_stream() {
        const auto next = [&] {
            return std::next(streams_.begin(), static_cast<std::ptrdiff_t>(taken_streams_));
        };
        wait([&] { return streams_.size() > taken_streams_ && !next()->requests_.empty(); },
             "another stream");
        const std::lock_guard lock(mutex_);
        Stream& stream = *next();
        taken_streams_++;
        return stream;
    }
    // The next call of the method.
    void fail(const std::string& method, const grpc::Status& status) {
        const std::lock_guard lock(mutex_);
        failures_[method].push_back(status);
    }
    void answer(const std::string& method, Answer answer) {
        const std::lock_guard lock(mutex_);
        answers_[method] = std::move(answer);
    }
    // Calls are not answered until let_go().
    void hold() {
        const std::lock_guard lock(mutex_);
        holds_ = true;
    }
    void let_go() {
        const std::lock_guard lock(mutex_);
        holds_ = false;
        for (Unary& unary : unaries_)
            unary.answer();
    }

    // -- What it has seen --------------------------------------------------------------------------

    std::vector<Called> calls(const std::string& method = "") const {
        const std::lock_guard lock(mutex_);
        std::vector<Called> found;
        std::ranges::copy_if(calls_, std::back_inserter(found), [&](const Called& call) {
            return method.empty() || call.method == method;
        });
        return found;
    }
    std::vector<std::string> acked() const {
        std::vector<std::string> all;
        for (const Called& call : calls("Acknowledge"))
            all.insert(all.end(), call.ack_ids.begin(), call.ack_ids.end());
        return all;
    }
    std::vector<std::string> given_back() const {
        std::vector<std::string> all;
        for (const Called& call : calls("ModifyAckDeadline"))
            if (call.seconds == 0)
                all.insert(all.end(), call.ack_ids.begin(), call.ack_ids.end());
        return all;
    }
    std::vector<std::vector<std::string>> extended() const {
        std::vector<std::vector<std::string>> all;
        for (const Called& call : calls("ModifyAckDeadline"))
            if (call.seconds > 0)
                all.push_back(call.ack_ids);
        return all;
    }
    std::size_t streams() const {
        const std::lock_guard lock(mutex_);
        return streams_.size();
    }

    // Waits until the condition holds, which may change with any call of the client. It is looked at
    // under the mutex.
    template <typename Condition>
    void wait(Condition condition, const char* what) const {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, patience, condition))
            ADD_FAILURE() << "waited in vain for " << what;
    }

  private:
    class Unary final : public grpc::ServerGenericBidiReactor {
      public:
        Unary(ScriptedPubSub& service, std::string method)
            : service_(service), method_(std::move(method)) {
            StartRead(&request_);
        }
        void answer() {
            if (!arrived_ || service_.holds_ || std::exchange(answered_, true))
                return;
            const grpc::Status status = service_.status_of(service_.calls_[number_]);
            if (status.ok())
                StartWriteAndFinish(&response_, {}, status);
            else
                Finish(status);
        }

      private:
        void OnReadDone(bool ok) override {
            const std::lock_guard lock(service_.mutex_);
            if (!ok)
                return;
            arrived_ = true;
            number_ = service_.note(method_, request_);
            answer();
        }
        void OnCancel() override {
            const std::lock_guard lock(service_.mutex_);
            if (!std::exchange(answered_, true))
                Finish(grpc::Status::CANCELLED);
        }
        void OnDone() override { service_.done(); }

        ScriptedPubSub& service_;
        const std::string method_;
        grpc::ByteBuffer request_, response_ = serialized(Nothing());
        std::size_t number_ = 0;
        bool arrived_ = false;
        bool answered_ = false;
    };

    grpc::ServerGenericBidiReactor* CreateReactor(
        grpc::GenericCallbackServerContext* context) override {
        const std::string method = context->method().substr(context->method().rfind('/') + 1);
        const std::lock_guard lock(mutex_);
        alive_++;
        if (method != "StreamingPull")
            return &unaries_.emplace_back(*this, method);
        Stream* const stream = &streams_.emplace_back(*this);
        changed_.notify_all();
        return stream;
    }

    void done() {
        const std::lock_guard lock(mutex_);
        alive_--;
        changed_.notify_all();
    }

    std::size_t note(const std::string& method, const grpc::ByteBuffer& request) {
        Called called{.method = method, .request = request};
        if (method == "Acknowledge") {
            const auto message = parsed<AcknowledgeRequest>(request);
            called.ack_ids.assign(message.ack_ids().begin(), message.ack_ids().end());
        } else if (method == "ModifyAckDeadline") {
            const auto message = parsed<ModifyAckDeadlineRequest>(request);
            called.ack_ids.assign(message.ack_ids().begin(), message.ack_ids().end());
            called.seconds = message.ack_deadline_seconds();
        }
        calls_.push_back(std::move(called));
        changed_.notify_all();
        return calls_.size() - 1;
    }

    grpc::Status status_of(const Called& called) {
        if (auto& failures = failures_[called.method]; !failures.empty()) {
            const grpc::Status status = failures.front();
            failures.pop_front();
            return status;
        }
        const auto answer = answers_.find(called.method);
        return answer != answers_.end() ? answer->second(called) : grpc::Status::OK;
    }

    int port_ = 0;
    std::unique_ptr<grpc::Server> server_;
    mutable std::recursive_mutex mutex_;
    mutable std::condition_variable_any changed_;
    std::list<Stream> streams_;
    std::size_t taken_streams_ = 0;
    std::size_t alive_ = 0;  // reactors that gRPC has not done with
    std::list<Unary> unaries_;
    std::vector<Called> calls_;
    std::map<std::string, std::deque<grpc::Status>> failures_;
    std::map<std::string, Answer> answers_;
    bool holds_ = false;
};

}  // namespace inbox::pubsub
