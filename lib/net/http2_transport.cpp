// The transport for https if many small requests go to one server that offers HTTP/2: requests go side
// by side in our own code, over connections of net/http2_connection. That costs a third of what
// libcurl's multi interface does (docs/decisions/031-own-http2-exchange.md).
//
// libcurl's transport gets everything else: all requests if the server chooses HTTP/1.1, and those
// for which TLS fails, so that it says why.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

#include "net/http2_connection.hpp"
#include "net/transport.hpp"

namespace outbox {

namespace {

constexpr const char* not_watched = "could not watch a connection";

class Http2Transport final : public Transport {
  public:
    explicit Http2Transport(TransportConfig config)
        : config_(std::move(config)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

    ~Http2Transport() override {
        if (epoll_ >= 0)
            close(epoll_);
    }

    int descriptor() const noexcept override { return epoll_; }

    Micros deadline() const noexcept override {
        if (!failed_.empty() || (!waiting_.empty() && (uses_other_ || can_open() || has_room())))
            return 0;
        Micros first = waiting_.empty() ? never : waiting_.front().deadline;
        for (const auto& connection : connections_)
            first = std::min(first, connection->deadline());
        return other_ == nullptr ? first : std::min(first, other_->deadline());
    }

    void send(Exchange& exchange) override {
        waiting_.push_back({&exchange, config_.clock.now() + config_.request_timeout});
    }

    void step(Micros now, std::vector<Exchange*>& done) override {
        start_waiting();
        for (const auto& connection : connections_)
            connection->step(now, done, again_);
        wait_again();
        std::erase_if(connections_,
                      [this](const auto& connection) { return has_ended(*connection); });
        if (uses_other_)
            use_other();
        expire(now);
        done.insert(done.end(), failed_.begin(), failed_.end());
        failed_.clear();
        if (other_ != nullptr)
            other_->step(now, done);
    }

  private:
    bool has_room() const noexcept {
        return std::any_of(connections_.begin(), connections_.end(),
                           [](const auto& connection) { return connection->has_room(); });
    }

    bool can_open() const noexcept {
        return !uses_other_ && connections_.size() < config_.max_connections &&
               std::none_of(connections_.begin(), connections_.end(),
                            [](const auto& connection) { return connection->is_opening(); });
    }

    void start_waiting() {
        for (const auto& connection : connections_)
            for (; !waiting_.empty() && connection->has_room(); waiting_.pop_front())
                connection->start(waiting_.front());
        if (!waiting_.empty() && can_open())
            open();
    }

    // Connections return requests in any order.
    void wait_again() {
        if (again_.empty())
            return;
        waiting_.insert(waiting_.begin(), again_.begin(), again_.end());
        again_.clear();
        std::sort(waiting_.begin(), waiting_.end(),
                  [](const auto& one, const auto& other) { return one.deadline < other.deadline; });
    }

    void open() {
        connections_.push_back(std::make_unique<Http2Connection>(config_));
        if (watch(connections_.back()->descriptor()))
            return;
        connections_.pop_back();
        fail_waiting(not_watched, Scope::connection);
    }

    // Until the descriptor is closed. Fails if the system has no descriptors or no memory left.
    bool watch(int descriptor) noexcept {
        epoll_event event{};
        event.events = EPOLLIN;
        return epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0;
    }

    bool has_ended(const Http2Connection& connection) {
        switch (connection.state()) {
            case Http2Connection::State::connecting:
            case Http2Connection::State::open:
                return false;
            case Http2Connection::State::without_tls:
                use_other();
                return true;
            case Http2Connection::State::other_protocol:
                use_other();
                uses_other_ = true;
                return true;
            case Http2Connection::State::unreachable:
                fail_waiting(connection.failure(), connection.scope());
                return true;
            case Http2Connection::State::closed:
                return true;
        }
        return true;
    }

    void use_other() {
        if (other_ == nullptr) {
            auto other = create_curl_transport(config_);
            if (!watch(other->descriptor())) {
                fail_waiting(not_watched, Scope::connection);
                return;
            }
            other_ = std::move(other);
        }
        for (; !waiting_.empty(); waiting_.pop_front())
            other_->send(*waiting_.front().exchange);
    }

    void fail_waiting(const std::string& why, Scope scope) {
        for (; !waiting_.empty(); waiting_.pop_front()) {
            waiting_.front().exchange->scope = scope;
            fail(why);
        }
    }

    void expire(Micros now) {
        for (; !waiting_.empty() && now >= waiting_.front().deadline; waiting_.pop_front())
            fail(late_answer(config_));
    }

    void fail(std::string why) {
        waiting_.front().exchange->fail(std::move(why));
        failed_.push_back(waiting_.front().exchange);
    }

    const TransportConfig config_;
    const int epoll_;
    std::deque<Http2Request> waiting_;  // earliest deadline first
    std::vector<Http2Request> again_;
    std::vector<Exchange*> failed_;
    bool uses_other_ = false;  // for all requests
    std::unique_ptr<Transport> other_;
    std::vector<std::unique_ptr<Http2Connection>> connections_;
};

}  // namespace

std::unique_ptr<Transport> create_transport_for_many(TransportConfig config) {
    if (config.url.scheme != "https")
        return create_direct_transport(std::move(config));
    if (!is_host_name(config.url.host))  // libcurl says what it is
        return create_curl_transport(std::move(config));
    return std::make_unique<Http2Transport>(std::move(config));
}

}  // namespace outbox
