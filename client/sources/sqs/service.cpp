#include "sqs/service.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "cloud/aws/batch_answer.hpp"
#include "cloud/aws/sqs_protocol.hpp"

namespace inbox::sqs {

using outbox::Micros;

// Enough for ten messages of 1 MiB in which all characters are escaped.
static constexpr std::size_t kept_messages = 64 * 1024 * 1024;

static constexpr std::size_t max_other_connections = 8;

static int make_epoll() {
    const int descriptor = epoll_create1(EPOLL_CLOEXEC);
    if (descriptor < 0)
        throw std::system_error(errno, std::generic_category(), "epoll_create1");
    return descriptor;
}

Service::Service(const outbox::AwsOptions& aws, outbox::TransportOptions transport,
                 const outbox::Clock& clock, Micros poll)
    : options_(std::move(transport)),
      clock_(clock),
      poll_(poll),
      epoll_(make_epoll()),
      service_(outbox::AwsKind::sqs, aws),
      keys_(aws, options_.request_timeout, clock) {
    watch(keys_.descriptor());
}

Service::~Service() {
    close(epoll_);
}

void Service::watch(int descriptor) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
}

Micros Service::deadline() const {
    Micros first = keys_.deadline();
    for (const auto* transport : {polls_.get(), others_.get()})
        if (transport != nullptr)
            first = std::min(first, transport->deadline());
    return first;
}

outbox::Transport& Service::transport_for(Request::Kind kind) {
    const bool is_poll = kind == Request::Kind::poll;
    auto& transport = is_poll ? polls_ : others_;
    if (transport == nullptr) {
        outbox::TransportConfig config =
            outbox::transport_config(options_, clock_, service_.url(),
                                     is_poll ? options_.max_connections : max_other_connections);
        if (is_poll)
            config.request_timeout += poll_;
        transport = outbox::create_transport(std::move(config));
        watch(transport->descriptor());
    }
    return *transport;
}

void Service::send(std::unique_ptr<Request> request, std::string_view action) {
    service_.sign(*request, keys_.keys(), clock_.unix_now(), action);
    if (request->kind == Request::Kind::poll)
        request->keep_body = kept_messages;
    requests_.push_back(std::move(request));
    transport_for(requests_.back()->kind).send(*requests_.back());
}

std::vector<std::unique_ptr<Request>> Service::step(Micros now) {
    keys_.step(now);
    for (auto* transport : {polls_.get(), others_.get()})
        if (transport != nullptr)
            transport->step(now, done_);
    std::vector<std::unique_ptr<Request>> done;
    for (outbox::Exchange* exchange : done_) {
        const auto found = std::find_if(requests_.begin(), requests_.end(),
                                        [&](const auto& r) { return r.get() == exchange; });
        done.push_back(std::move(*found));
        requests_.erase(found);
    }
    done_.clear();
    return done;
}

void Service::drop_polls() {
    polls_.reset();
    std::erase_if(requests_, [](const auto& r) { return r->kind == Request::Kind::poll; });
}

std::size_t Service::under_way(Request::Kind kind) const {
    return static_cast<std::size_t>(std::count_if(requests_.begin(), requests_.end(),
                                                  [&](const auto& r) { return r->kind == kind; }));
}

Service::Failure Service::failure_of(const Request& request) {
    const outbox::AwsFailure failure = service_.failure_in(request.body);
    const outbox::AwsVerdict verdict = outbox::verdict_of_request(request.status, failure);
    if (verdict.bad_credentials)
        keys_.rejected();
    const bool refused =
        request.status >= 400 && request.status < 500 &&
        (verdict.fate == outbox::Fate::refused || verdict.fate == outbox::Fate::unavailable);
    return {outbox::AwsService::describe(request, failure), refused,
            outbox::retry_after_of(request.retry_after, clock_.unix_now())};
}

bool Service::is_final(const outbox::AwsFailure& failure) {
    const outbox::AwsVerdict verdict = outbox::verdict_of_entry(failure);
    if (verdict.bad_credentials)
        keys_.rejected();
    return verdict.fate == outbox::Fate::refused;
}

}  // namespace inbox::sqs
