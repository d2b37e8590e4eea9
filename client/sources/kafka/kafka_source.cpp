#include "inbox/sources/kafka.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "kafka/session.hpp"

namespace inbox {

using kafka::Session;
using std::chrono::milliseconds;

// Time for an earlier membership to end before the next one begins.
static constexpr milliseconds reopen_limit{2000};

static void require(bool condition, const std::string& what) {
    if (!condition)
        throw std::invalid_argument("KafkaOptions: " + what);
}

static bool is_known(const std::string& mechanism) {
    static constexpr std::array known{"", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"};
    return std::ranges::find(known, mechanism) != known.end();
}

static void check(const KafkaOptions& options) {
    using namespace std::chrono_literals;
    require(!options.brokers.empty(), "brokers is empty");
    require(!options.group.empty(), "group is empty");
    require(!options.topics.empty(), "topics is empty");
    for (const std::string& topic : options.topics)
        require(!topic.empty(), "topics has an empty name");
    require(is_known(options.sasl_mechanism),
            "sasl_mechanism must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; set others in "
            "properties");
    require(options.sasl_mechanism.empty() == options.user.empty() &&
                options.user.empty() == options.password.empty(),
            "sasl_mechanism, user and password need each other");
    require(options.certificate_file.empty() == options.private_key_file.empty(),
            "certificate_file and private_key_file need each other");
    require(options.tls || (options.ca_file.empty() && options.certificate_file.empty()),
            "certificates need tls");
    require(options.session_timeout >= 1s && options.session_timeout <= 30min,
            "session_timeout must be 1 s to 30 min");
    require(options.commit_interval >= 10ms && options.commit_interval <= 1h,
            "commit_interval must be 10 ms to 1 h");
    require(options.revoke_limit > 0ms, "revoke_limit must be more than 0");
    require(options.prefetch_bytes >= 1 << 20 && options.prefetch_bytes <= 1 << 30,
            "prefetch_bytes must be 1 MiB to 1 GiB");
    kafka::check_properties(options);
}

class KafkaSource::Impl {
  public:
    Impl(KafkaOptions options, Log log)
        : membership_{.options = std::move(options), .subscription = {}, .log = std::move(log)} {
        membership_.subscription = "kafka://" + membership_.options.group;
    }

    const std::string& name() const { return membership_.subscription; }
    bool saves_offsets() const { return membership_.options.offsets_in_database; }
    void set_positions(LoadPositions load) { membership_.load_positions = std::move(load); }

    void open() {
        if (saves_offsets() && !membership_.load_positions)
            throw SourceError("offsets_in_database needs a consumer with a database", false);
        close(reopen_limit);
        auto session = std::make_shared<Session>(membership_);
        const std::lock_guard lock(mutex_);
        session_ = std::move(session);
    }

    void close(milliseconds limit) {
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
        std::ranges::move(session->gaps(), std::back_inserter(gaps_));
    }

    std::vector<Gap> gaps() {
        const std::lock_guard lock(mutex_);
        std::vector<Gap> gaps = std::exchange(gaps_, {});
        if (session_)
            std::ranges::move(session_->gaps(), std::back_inserter(gaps));
        return gaps;
    }

    // Returns nullptr if the source is not open.
    std::shared_ptr<Session> session() const {
        const std::lock_guard lock(mutex_);
        return session_;
    }

    KafkaStats stats() const {
        const std::lock_guard lock(mutex_);
        KafkaStats stats = stats_;
        if (session_) {
            const KafkaStats now = session_->stats();
            add(stats, now);
            stats.partitions = now.partitions;
            stats.outstanding = now.outstanding;
            stats.waiting = now.waiting;
            stats.lag = now.lag;
        }
        return stats;
    }

  private:
    static void add(KafkaStats& to, const KafkaStats& more) {
        for (const auto counter :
             {&KafkaStats::received, &KafkaStats::acked, &KafkaStats::nacked, &KafkaStats::commits,
              &KafkaStats::assignments, &KafkaStats::revocations, &KafkaStats::lost})
            to.*counter += more.*counter;
    }

    kafka::Membership membership_;
    mutable std::mutex mutex_;
    std::shared_ptr<Session> session_;
    // Of earlier sessions.
    KafkaStats stats_;
    std::vector<Gap> gaps_;
};

KafkaSource::KafkaSource(KafkaOptions options) {
    check(options);
    impl_ = std::make_unique<Impl>(
        std::move(options), [this](Level level, const std::string& text) { log(level, text); });
}

KafkaSource::~KafkaSource() {
    close(milliseconds(0));
}

std::string KafkaSource::subscription() const {
    return impl_->name();
}

void KafkaSource::open() {
    impl_->open();
}

std::vector<Delivery> KafkaSource::receive(std::size_t max_messages, milliseconds wait) {
    const std::shared_ptr<Session> session = impl_->session();
    return session ? session->receive(max_messages, wait) : std::vector<Delivery>();
}

void KafkaSource::ack(std::span<const Delivery> deliveries) {
    if (const std::shared_ptr<Session> session = impl_->session())
        session->ack(deliveries);
}

void KafkaSource::nack(std::span<const Delivery> deliveries) {
    if (const std::shared_ptr<Session> session = impl_->session())
        session->nack(deliveries);
}

void KafkaSource::seek(Time to) {
    const std::shared_ptr<Session> session = impl_->session();
    if (!session)
        throw SourceError("the source is not open", true);
    session->seek(to);
}

void KafkaSource::close(milliseconds limit) noexcept {
    try {
        impl_->close(limit);
    } catch (const std::exception& error) {
        log(Level::error, error.what());
    }
}

std::vector<Position> KafkaSource::positions(std::span<const Delivery* const> deliveries) {
    if (!impl_->saves_offsets())
        return Source::positions(deliveries);
    const std::shared_ptr<Session> session = impl_->session();
    return session ? session->positions(deliveries) : std::vector<Position>();
}

std::vector<Position> KafkaSource::moved_positions() {
    const std::shared_ptr<Session> session = impl_->session();
    return session && impl_->saves_offsets() ? session->moved_positions() : std::vector<Position>();
}

std::vector<Gap> KafkaSource::gaps() {
    return impl_->gaps();
}

void KafkaSource::set_positions(LoadPositions load) {
    impl_->set_positions(std::move(load));
}

std::function<bool(const Delivery&)> KafkaSource::recall() {
    std::shared_ptr<Session> session = impl_->session();
    if (!session || !session->wants_recall())
        return {};
    return [session = std::move(session)](const Delivery& delivery) {
        return session->is_recalled(delivery);
    };
}

KafkaStats KafkaSource::stats() const {
    return impl_->stats();
}

}  // namespace inbox
