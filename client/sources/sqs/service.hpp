// Sends signed requests to SQS side by side, without blocking, for one thread with a loop.
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
    std::string attempt_id;  // of a poll; may be empty
    Claims::Batch batch;     // of a change
};

class Service {
  public:
    // `poll` is the time that a poll may take longer than other requests.
    Service(const outbox::AwsOptions& aws, outbox::TransportOptions transport,
            const outbox::Clock& clock, outbox::Micros poll);
    ~Service();

    // If the descriptor is readable or the deadline has passed, step() has something to do.
    int descriptor() const { return epoll_; }
    outbox::Micros deadline() const;

    // Returns whether requests can be signed. Starts to fetch the keys if not.
    outbox::Credentials::State need_keys(outbox::Micros now) { return keys_.need(now); }
    const std::string& keys_error() const { return keys_.error(); }

    // `body` is in the request's buffer, which must not be changed until step() returns the
    // request.
    void send(std::unique_ptr<Request> request, std::string_view action);
    std::vector<std::unique_ptr<Request>> step(outbox::Micros now);
    // Abandons the polls under way.
    void drop_polls();
    std::size_t under_way(Request::Kind kind) const;

    // An answer that is not a success.
    struct Failure {
        std::string text;
        bool refused;  // the service refuses, and will refuse again unless something changes
        outbox::Micros retry_after;
    };
    Failure failure_of(const Request& request);
    // Whether an entry that was not taken will never be, such as one with a receipt handle that is not valid any more.
    bool is_final(const outbox::AwsFailure& failure);

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
    // Declared before the transports, which refer to them.
    std::vector<std::unique_ptr<Request>> requests_;
    std::unique_ptr<outbox::Transport> polls_, others_;
    std::vector<outbox::Exchange*> done_;
};

}  // namespace inbox::sqs
