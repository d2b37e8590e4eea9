#include "inbox/consumer.hpp"

#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "applier.hpp"
#include "core/signals.hpp"
#include "dispatcher.hpp"
#include "housekeeper.hpp"
#include "receiver.hpp"
#include "shared.hpp"

namespace inbox {

using std::chrono::milliseconds;

// Time for a source to send its last acknowledgements.
static constexpr milliseconds close_limit{5000};
// Pause between checks of a condition that has no notification.
static constexpr milliseconds short_interval{100};

static void check_options(const ConsumerOptions& options) {
    const auto require = [](bool ok, const char* what) {
        if (!ok)
            throw std::invalid_argument(std::string("inbox::ConsumerOptions: ") + what);
    };
    require(!options.name.empty(), "name must not be empty");
    require(options.connections >= 1, "connections must be at least 1");
    require(options.batch_size >= 1, "batch_size must be at least 1");
    require(options.max_attempts >= 0, "max_attempts must not be negative");
    require(options.max_outstanding_messages >= 1, "max_outstanding_messages must be at least 1");
    require(options.max_outstanding_bytes >= 1, "max_outstanding_bytes must be at least 1");
    require(options.retry_base.count() > 0, "retry_base must be more than 0");
    require(options.retry_max >= options.retry_base, "retry_max must be at least retry_base");
    require(options.housekeeping_interval.count() > 0, "housekeeping_interval must be more than 0");
    require(options.drain_limit.count() >= 0, "drain_limit must not be negative");
}

static std::string name_of_process() {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return std::string(host) + ":" + std::to_string(getpid());
}

class Consumer::Impl {
  public:
    Impl(ConsumerOptions options, std::unique_ptr<Source> source, ConnectionFactory connect,
         Handler handler);

    void run();
    void stop() noexcept { shared_.stop.raise(); }
    ConsumerMetrics metrics() const;

  private:
    template <typename Task>
    void start(Task task);
    void start_all();
    void work(unsigned number);
    void keep_house();
    void settle(std::vector<Delivery> done);
    void finish();

    Shared shared_;
    std::unique_ptr<Source> source_;
    Dispatcher dispatcher_;
    Receiver receiver_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable ended_;
    unsigned running_ = 0;                      // threads
    std::unique_ptr<Housekeeper> housekeeper_;  // once its thread has ended
    std::exception_ptr fatal_;
};

Consumer::Impl::Impl(ConsumerOptions options, std::unique_ptr<Source> source,
                     ConnectionFactory connect, Handler handler)
    : shared_{.options = options,
              .instance = options.instance.empty() ? name_of_process() : options.instance,
              .subscription = source->subscription(),
              .connect = std::move(connect),
              .handler = std::move(handler)},
      source_(std::move(source)),
      dispatcher_(options.max_outstanding_messages, options.max_outstanding_bytes),
      receiver_(shared_, *source_, dispatcher_) {
    source_->set_log(shared_.options.log);
    source_->set_positions([this](const std::vector<std::string>& subscriptions) {
        return load_positions(shared_, subscriptions);
    });
}

// An exception in any thread ends the consumer.
template <typename Task>
void Consumer::Impl::start(Task task) {
    {
        const std::lock_guard lock(mutex_);
        running_++;
    }
    auto thread = [this, task] {
        try {
            task();
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!fatal_)
                fatal_ = std::current_exception();
            shared_.stop.raise();
        }
        const std::lock_guard lock(mutex_);
        running_--;
        ended_.notify_all();
    };
    try {
        threads_.emplace_back(std::move(thread));
    } catch (...) {
        const std::lock_guard lock(mutex_);
        running_--;
        throw;
    }
}

void Consumer::Impl::start_all() {
    const outbox::SignalsBlocked blocked;
    start([this] { receiver_.run(); });
    for (int i = 1; i <= shared_.options.connections; i++)
        start([this, i] { work(i); });
    start([this] { keep_house(); });
}

void Consumer::Impl::run() {
    try {
        start_all();
    } catch (...) {  // the system has no more threads: end those that run
        shared_.stop.raise();
        finish();
        throw;
    }
    shared_.stop.wait();
    finish();
    if (fatal_)
        std::rethrow_exception(fatal_);
}

void Consumer::Impl::keep_house() {
    auto housekeeper = std::make_unique<Housekeeper>(shared_, receiver_, *source_);
    do
        housekeeper->turn();
    while (!shared_.stop.wait(housekeeper->in_a_hurry() ? short_interval
                                                        : shared_.options.housekeeping_interval));
    const std::lock_guard lock(mutex_);
    housekeeper_ = std::move(housekeeper);
}

void Consumer::Impl::work(unsigned number) {
    Applier applier(shared_, *source_, shared_.instance + "/" + std::to_string(number));
    for (;;) {
        std::vector<Item> items = dispatcher_.take(shared_.options.batch_size);
        if (items.empty() || shared_.stop.raised())
            return;  // take() has not begun these deliveries, so the source gives them back
        applier.apply(items);
        settle(dispatcher_.finish(std::move(items)));
    }
}

void Consumer::Impl::settle(std::vector<Delivery> done) {
    if (done.empty())
        return;
    try {
        source_->ack(done);
        shared_.counters.acked += done.size();
    } catch (const std::exception& error) {
        // The deliveries come again, and are then recognized as duplicates.
        shared_.log(Level::warning, source_->describe() + " cannot acknowledge: " + error.what());
    }
}

// Batches that have begun get until the limit. The source gives the rest back when it is closed.
//
// The housekeeper may still have what it took from the source. Another one is made only if a handler
// of a redriven message keeps it over the limit.
void Consumer::Impl::finish() {
    receiver_.stop();
    dispatcher_.stop();
    std::unique_ptr<Housekeeper> housekeeper;
    {
        std::unique_lock lock(mutex_);
        ended_.wait_for(lock, shared_.options.drain_limit, [this] { return running_ == 0; });
        housekeeper.swap(housekeeper_);
    }
    if (!housekeeper)
        housekeeper = std::make_unique<Housekeeper>(shared_, receiver_, *source_);
    housekeeper->finish();
    shared_.give_up.raise();
    source_->interrupt();
    for (std::thread& thread : threads_)
        thread.join();
    threads_.clear();
    source_->close(close_limit);
}

ConsumerMetrics Consumer::Impl::metrics() const {
    ConsumerMetrics metrics = shared_.counters.snapshot();
    metrics.outstanding_messages = dispatcher_.messages();
    metrics.outstanding_bytes = dispatcher_.bytes();
    return metrics;
}

Consumer::Consumer(ConsumerOptions options, std::unique_ptr<Source> source,
                   ConnectionFactory connect, Handler handler) {
    check_options(options);
    if (!source || !connect || !handler)
        throw std::invalid_argument(
            "inbox::Consumer needs a source, a connection factory and a handler");
    impl_ = std::make_unique<Impl>(std::move(options), std::move(source), std::move(connect),
                                   std::move(handler));
}

Consumer::~Consumer() = default;

void Consumer::run() {
    impl_->run();
}

void Consumer::stop() noexcept {
    impl_->stop();
}

ConsumerMetrics Consumer::metrics() const {
    return impl_->metrics();
}

}  // namespace inbox
