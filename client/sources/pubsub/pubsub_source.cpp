#include "inbox/sources/pubsub.hpp"

#include <mutex>
#include <stdexcept>
#include <utility>

#include "core/signals.hpp"
#include "message/decode.hpp"
#include "pubsub/answer.hpp"
#include "pubsub/session.hpp"

namespace inbox {

using pubsub::ReceivedMessage;
using pubsub::Session;

static void require(bool condition, const char* what) {
    if (!condition)
        throw std::invalid_argument(std::string("Pub/Sub source: ") + what);
}

static void check(const PubSubOptions& options) {
    using namespace std::chrono_literals;
    require(!options.project.empty(), "project is empty");
    require(!options.subscription.empty(), "subscription is empty");
    require(options.max_outstanding_messages > 0, "max_outstanding_messages is 0");
    require(options.max_outstanding_bytes > 0, "max_outstanding_bytes is 0");
    require(options.min_ack_deadline >= 1s && options.max_ack_deadline <= 600s &&
                options.min_ack_deadline <= options.max_ack_deadline,
            "min_ack_deadline and max_ack_deadline are from 1 s to 600 s");
    require(options.max_lease >= options.min_ack_deadline,
            "max_lease is less than min_ack_deadline");
    require(options.heartbeat > 0ms, "heartbeat is 0");
}

class PubSubSource::Impl {
  public:
    Impl(PubSubOptions options, Log log) : options_(std::move(options)), log_(std::move(log)) {}

    const std::string& name() const { return name_; }

    void open() {
        close(std::chrono::milliseconds(0));
        const outbox::SignalsBlocked blocked;  // the constructor starts a thread
        auto session = std::make_shared<Session>(options_, log_);
        const std::lock_guard lock(mutex_);
        session_ = std::move(session);
    }

    void close(std::chrono::milliseconds limit) {
        std::shared_ptr<Session> session;
        {
            const std::lock_guard lock(mutex_);
            session = std::exchange(session_, nullptr);
        }
        if (!session)
            return;
        session->close(limit);
        const std::lock_guard lock(mutex_);
        add(stats_, session->stats());
    }

    // Returns nullptr if the source is not open.
    std::shared_ptr<Session> session() const {
        const std::lock_guard lock(mutex_);
        return session_;
    }

    void create_snapshot(const std::string& id) {
        const auto call = pubsub::create_snapshot(snapshot(id), resource());
        check(call->wait(channel(), unary_limit), "create " + snapshot(id));
    }

    void seek(const std::shared_ptr<pubsub::Call>& call) {
        const std::shared_ptr<Session> session = this->session();
        check(session ? session->seek(*call) : call->wait(channel(), unary_limit),
              "seek " + resource());
    }

    std::string resource() const {
        return "projects/" + options_.project + "/subscriptions/" + options_.subscription;
    }
    std::string snapshot(const std::string& id) const {
        return "projects/" + options_.project + "/snapshots/" + id;
    }

    Delivery decode(ReceivedMessage received) const;

    PubSubStats stats() const {
        const std::lock_guard lock(mutex_);
        PubSubStats stats = stats_;
        if (session_)
            add(stats, session_->stats());
        return stats;
    }

  private:
    static constexpr std::chrono::seconds unary_limit{60};

    static void check(const grpc::Status& status, const std::string& what) {
        if (!status.ok())
            throw SourceError("cannot " + what + ": " + pubsub::describe(status),
                              pubsub::is_transient(status));
    }

    std::shared_ptr<grpc::Channel> channel() const {
        const std::shared_ptr<Session> session = this->session();
        return session ? session->channel() : pubsub::make_channel(options_);
    }

    static void add(PubSubStats& to, const PubSubStats& more);

    const PubSubOptions options_;
    const Log log_;
    const std::string name_ = "pubsub://" + options_.project + '/' + options_.subscription;
    mutable std::mutex mutex_;
    std::shared_ptr<Session> session_;
    PubSubStats stats_;  // of earlier sessions
};

void PubSubSource::Impl::add(PubSubStats& to, const PubSubStats& more) {
    for (const auto counter :
         {&PubSubStats::streams, &PubSubStats::received, &PubSubStats::acked, &PubSubStats::nacked,
          &PubSubStats::extended, &PubSubStats::overtaken, &PubSubStats::expired,
          &PubSubStats::refused, &PubSubStats::lost_acks})
        to.*counter += more.*counter;
    to.leased = more.leased;
    to.waiting = more.waiting;
}

Delivery PubSubSource::Impl::decode(ReceivedMessage received) const {
    pubsub::Message& message = *received.mutable_message();
    Delivery delivery;
    delivery.source = name_;
    delivery.message_id = message.message_id();
    if (const auto second = time_of(std::chrono::seconds(message.publish_time().seconds())))
        delivery.published_at =
            *second + std::chrono::microseconds(message.publish_time().nanos() / 1000);
    delivery.handle = received.ack_id();
    delivery.size = message.ByteSizeLong();
    const Fallback fallback{
        .source = name_,
        .message_id = message.message_id(),
        .topic = options_.topic.empty() ? options_.subscription : options_.topic,
        .ordering_key = message.ordering_key(),
        .published_at = delivery.published_at};
    const std::map<std::string, std::string> attributes(message.attributes().begin(),
                                                        message.attributes().end());
    delivery.event = decode_message(attributes, std::move(*message.mutable_data()), fallback);
    return delivery;
}

// ---------------------------------------------------------------------------------------------
// The source
// ---------------------------------------------------------------------------------------------

PubSubSource::PubSubSource(PubSubOptions options) {
    check(options);
    impl_ = std::make_unique<Impl>(
        std::move(options), [this](Level level, const std::string& text) { log(level, text); });
}

PubSubSource::~PubSubSource() {
    close(std::chrono::milliseconds(0));
}

std::string PubSubSource::subscription() const {
    return impl_->name();
}

void PubSubSource::open() {
    impl_->open();
}

std::vector<Delivery> PubSubSource::receive(std::size_t max_messages,
                                            std::chrono::milliseconds wait) {
    std::vector<Delivery> deliveries;
    if (const std::shared_ptr<Session> session = impl_->session())
        for (ReceivedMessage& message : session->receive(max_messages, wait))
            deliveries.push_back(impl_->decode(std::move(message)));
    return deliveries;
}

void PubSubSource::ack(std::span<const Delivery> deliveries) {
    if (const std::shared_ptr<Session> session = impl_->session())
        session->ack(deliveries);
}

void PubSubSource::nack(std::span<const Delivery> deliveries) {
    if (const std::shared_ptr<Session> session = impl_->session())
        session->nack(deliveries);
}

void PubSubSource::seek(Time to) {
    impl_->seek(pubsub::seek(impl_->resource(), to));
}

void PubSubSource::seek_to_snapshot(const std::string& id) {
    impl_->seek(pubsub::seek(impl_->resource(), impl_->snapshot(id)));
}

void PubSubSource::create_snapshot(const std::string& id) {
    impl_->create_snapshot(id);
}

void PubSubSource::close(std::chrono::milliseconds limit) noexcept {
    try {
        impl_->close(limit);
    } catch (const std::exception& error) {
        log(Level::error, error.what());
    }
}

PubSubStats PubSubSource::stats() const {
    return impl_->stats();
}

}  // namespace inbox
