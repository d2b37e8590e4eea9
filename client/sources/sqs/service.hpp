// Requests to SQS, signed, side by side, without waiting: for one thread with a loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cloud/aws/aws_credentials.hpp"
#include "cloud/aws/aws_service.hpp"
#include "core/clock.hpp"
#include "net/transport.hpp"
#include "sqs/claims.hpp"

namespace inbox::sqs {

struct Request : outbox::Exchange {
    enum class Kind { look_up, poll, change } kind = Kind::look_up;
    std::string attempt_id;  // of a poll; empty: none
    Claims::Batch batch;     // of a change
};

class Service {
  public:
    // `poll`: how much longer than others a poll may take.
    Service(const outbox::AwsOptions& aws, outbox::TransportOptions transport,
            const outbox::Clock& clock, outbox::Micros poll);
    ~Service();

    // Readable, or past the deadline: step() has something to do.
    int descriptor() const { return epoll_; }
    outbox::Micros deadline() const;

    // Whether requests can be signed; begins to fetch the keys if not.
    outbox::Credentials::State need_keys(outbox::Micros now) { return keys_.need(now); }
    const std::string& keys_error() const { return keys_.error(); }

    // `body` stands in the request's buffer, which is not to be touched until step() returns it.
    void send(std::unique_ptr<Request> request, std::string_view action);
    std::vector<std::unique_ptr<Request>> step(outbox::Micros now);
    // Polls under way are given up.
    void drop_polls();
    std::size_t under_way(Request::Kind kind) const;

    // Of an answer that is no success.
    struct Failure {
        std::string text;
        bool refused;  // the service answered that it cannot, and will not unless something changes
        outbox::Micros retry_after;
    };
    Failure failure_of(const Request& request);

    std::string address_of(std::string_view queue) const { return service_.address_of(queue); }

  private:
    outbox::Transport& transport_for(Request::Kind kind);
    void watch(int descriptor);

    const outbox::TransportOptions options_;
    const outbox::Clock& clock_;
    const outbox::Micros poll_;
    int epoll_;
    outbox::AwsService service_;
    outbox::AwsCredentials keys_;
    std::vector<std::unique_ptr<Request>> requests_;  // before the transports that hold them
    std::unique_ptr<outbox::Transport> polls_, others_;
    std::vector<outbox::Exchange*> done_;
};

}  // namespace inbox::sqs
