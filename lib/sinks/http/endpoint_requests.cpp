#include "sinks/http/endpoint_requests.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "sinks/http/endpoint_secret.hpp"

namespace outbox {

// Beyond this, a request is started only if there is no other.
static constexpr std::size_t max_request_bytes = 64 * 1024 * 1024;
// Memory for a request that is kept for the next one.
static constexpr std::size_t kept_bytes = 64 * 1024;

static std::unique_ptr<Transport> make_transport(const EndpointOptions& options, const Clock& clock,
                                                 const std::string& authorization,
                                                 Repeats& repeats) {
    TransportConfig config = transport_config_of_many(
        options.transport, clock,
        options.transport.max_connections + options.transport.more_connections);
    config.authorization = authorization;
    config.repeats = &repeats;
    return create_curl_transport(std::move(config));
}

static bool any_of_them(const std::array<std::string, 2>& secrets) noexcept {
    return !secrets[0].empty() || !secrets[1].empty();
}

EndpointRequests::EndpointRequests(const EndpointOptions& options, const Destination& destination,
                                   const Clock& clock)
    : clock_(clock),
      master_secrets_(options.master_secrets),
      most_(options.transport.max_connections),
      max_troubled_(std::max<std::size_t>(1, most_ / 4)),
      secrets_(destination),
      requests_(options.format, options.source, options.headers,
                any_of_them(options.master_secrets)),
      transport_(make_transport(options, clock, requests_.authorization(), repeats_)) {}

Micros EndpointRequests::deadline() const noexcept {
    if (!failed_.empty())
        return 0;
    const Micros hangs_at = young_.empty() ? never : young_.front().first->started + hangs_after;
    return std::min(transport_->deadline(), hangs_at);
}

bool EndpointRequests::may_start(bool healthy) const noexcept {
    if (in_flight_ >= 2 * most_ || in_flight_ - hanging_ >= most_ ||
        (bytes_ >= max_request_bytes && in_flight_ > 0))
        return false;
    return healthy ||
           (troubled_ < 2 * max_troubled_ && troubled_ - hanging_troubled_ < max_troubled_);
}

EndpointRequest& EndpointRequests::spare() {
    if (spare_.empty()) {
        spare_.reserve(all_.size() + 1);  // give_back() must not fail
        all_.push_back(std::make_unique<EndpointRequest>());
        spare_.push_back(all_.back().get());
    }
    EndpointRequest& request = *spare_.back();
    spare_.pop_back();
    return request;
}

void EndpointRequests::start(EndpointLane& lane, const Event& event, Micros now) {
    EndpointRequest& request = spare();
    request.lane = &lane;
    request.xid = event.xid;
    request.position = event.position;
    request.key = event.ordering_key;
    request.has_copy = false;
    request.event = &event;
    request.healthy = lane.is_healthy();
    request.hangs = false;
    request.started = now;
    request.number = ++started_;
    lane.in_flight.push_back(&request);
    in_flight_++;
    troubled_ += !request.healthy;
    young_.emplace_back(&request, request.number);
    make(request, event);
}

void EndpointRequests::make(EndpointRequest& request, const Event& event) {
    request.status = 0;
    request.reached = false;
    request.scope = Scope::connection;
    request.retry_after.clear();
    request.body.clear();
    request.url = request.lane->row.url;
    Event copy = event;
    Event* const one[] = {&copy};
    RequestContent& content = request.content;
    requests_.encode(one, content);
    if (content.body.data() != content.buffer.data())
        content.buffer = content.body;
    content.body = content.buffer;
    bytes_ += content.body.size();
    if (!request.lane->unusable.empty())
        request.fail(request.lane->unusable);
    else if (sign(request, copy))
        return transport_->send(request);
    failed_.push_back(&request);
}

bool EndpointRequests::sign(EndpointRequest& request, Event& event) {
    if (!any_of_them(master_secrets_))
        return true;
    EndpointLane& lane = *request.lane;
    if (!lane.signer) {
        Result<WebhookSigner> signer =
            WebhookSigner::create(endpoint_secrets(master_secrets_, lane.row.secret_name), {});
        if (!signer || !signer.value()) {
            request.fail(signer ? "the endpoint has no name of a secret" : signer.error().message);
            return false;
        }
        lane.signer = std::move(signer.value());
    }
    Event* const one[] = {&event};
    requests_.sign(one, *lane.signer, clock_.unix_now(), request.content);
    return true;
}

void EndpointRequests::note_hanging(Micros now, std::vector<EndpointRequest*>& hang) {
    for (; !young_.empty(); young_.pop_front()) {
        EndpointRequest& request = *young_.front().first;
        if (request.number != young_.front().second)
            continue;  // has ended
        if (now < request.started + hangs_after)
            return;
        request.hangs = true;
        request.lane->hanging++;
        hanging_++;
        hanging_troubled_ += !request.healthy;
        hang.push_back(&request);
    }
}

void EndpointRequests::step(Micros now, std::vector<EndpointRequest*>& ended_requests,
                            std::vector<EndpointRequest*>& hang) {
    const std::size_t known = ended_requests.size();
    ended_requests.insert(ended_requests.end(), failed_.begin(), failed_.end());
    failed_.clear();
    transport_->step(now, done_);
    for (Exchange* exchange : done_) {
        conceal_secrets(*exchange, exchange->body);
        ended_requests.push_back(static_cast<EndpointRequest*>(exchange));
    }
    done_.clear();
    for (std::size_t i = known; i < ended_requests.size(); i++)
        ended(*ended_requests[i]);
    note_hanging(now, hang);
}

void EndpointRequests::ended(EndpointRequest& request) noexcept {
    request.number = 0;
    std::erase(request.lane->in_flight, &request);
    in_flight_--;
    troubled_ -= !request.healthy;
    bytes_ -= request.content.body.size();
    if (request.hangs) {
        request.lane->hanging--;
        hanging_--;
        hanging_troubled_ -= !request.healthy;
    }
}

void EndpointRequests::give_back(EndpointRequest& request) noexcept {
    RequestContent& content = request.content;
    content.body = {};
    if (content.buffer.capacity() > kept_bytes)
        std::string().swap(content.buffer);
    request.lane = nullptr;
    spare_.push_back(&request);
}

std::string EndpointRequests::explain(const EndpointRequest& request) const {
    std::string text = outbox::explain(static_cast<const Exchange&>(request));
    secrets_.conceal(text);
    for (char& c : text)
        if (static_cast<unsigned char>(c) >= 0x7f)
            c = '?';  // a database in another encoding could not take it
    return text;
}

}  // namespace outbox
