#include "sinks/kafka/transaction_thread.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "core/signals.hpp"

namespace outbox {

// A call waits this long before it checks whether the thread has to stop. A repeated call goes on
// where it was.
static constexpr int at_a_time = 200;  // milliseconds

namespace {

template <class T, void (*destroy)(T*)>
struct Destroy {
    void operator()(T* it) const noexcept { destroy(it); }
};
template <class T, void (*destroy)(T*)>
using Owned = std::unique_ptr<T, Destroy<T, destroy>>;

using OwnedError = Owned<rd_kafka_error_t, rd_kafka_error_destroy>;
using Queue = Owned<rd_kafka_queue_t, rd_kafka_queue_destroy>;
using OwnedEvent = Owned<rd_kafka_event_t, rd_kafka_event_destroy>;
using Partitions = Owned<rd_kafka_topic_partition_list_t, rd_kafka_topic_partition_list_destroy>;
using GroupMetadata =
    Owned<rd_kafka_consumer_group_metadata_t, rd_kafka_consumer_group_metadata_destroy>;
using Options = Owned<rd_kafka_AdminOptions_t, rd_kafka_AdminOptions_destroy>;
using Question =
    Owned<rd_kafka_ListConsumerGroupOffsets_t, rd_kafka_ListConsumerGroupOffsets_destroy>;

}  // namespace

struct TransactionThread::Shared {
    std::string group;
    rd_kafka_t* handle = nullptr;        // of the producer, which outlives the thread's calls
    std::shared_ptr<KafkaClient> asker;  // until the number is known; shared by threads

    std::mutex mutex;
    std::condition_variable changed;
    bool stops = false;
    int wake = -1;
    std::optional<Task> task;
    std::int64_t number = 0;
    std::string topic;
    std::optional<Result> result;
    std::unique_ptr<Producer> producer;  // set when it stops

    void run() noexcept;
    bool is_stopping() {
        const std::lock_guard lock(mutex);
        return stops;
    }
    Result perform(Task task);
    Result start();
    static bool is_passing(rd_kafka_resp_err_t error) noexcept;
    bool wait_a_moment();
    Result ask_for_number();
    Result commit();
    template <class Call>
    OwnedError repeat(Call call);
    Result last_number(const rd_kafka_event_t* answer);
};

// Repeats the call until it is done or has failed, or the thread has to stop.
template <class Call>
OwnedError TransactionThread::Shared::repeat(Call call) {
    while (true) {
        OwnedError error(call());
        const bool goes_on = error != nullptr && !rd_kafka_error_is_fatal(error.get()) &&
                             !rd_kafka_error_txn_requires_abort(error.get()) &&
                             (rd_kafka_error_is_retriable(error.get()) ||
                              rd_kafka_error_code(error.get()) == RD_KAFKA_RESP_ERR__TIMED_OUT);
        if (!goes_on || is_stopping())
            return error;
    }
}

static TransactionThread::Result result_of(const OwnedError& error) {
    if (error == nullptr)
        return {};
    return {rd_kafka_error_code(error.get()), rd_kafka_error_string(error.get()),
            rd_kafka_error_txn_requires_abort(error.get()) != 0};
}

TransactionThread::Result TransactionThread::Shared::start() {
    if (const OwnedError error =
            repeat([&] { return rd_kafka_init_transactions(handle, at_a_time); }))
        return result_of(error);

    Result result = ask_for_number();
    while (is_passing(result.error) && !wait_a_moment())
        result = ask_for_number();
    asker.reset();
    return result;
}

// The broker that keeps the numbers changes, or loads them. This happens when a group is new, and
// when a broker has ended.
bool TransactionThread::Shared::is_passing(rd_kafka_resp_err_t error) noexcept {
    return error == RD_KAFKA_RESP_ERR_NOT_COORDINATOR ||
           error == RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE ||
           error == RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS;
}

// Returns true if the thread has to stop.
bool TransactionThread::Shared::wait_a_moment() {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::milliseconds(at_a_time), [&] { return stops; });
}

TransactionThread::Result TransactionThread::Shared::ask_for_number() {
    const Queue queue(rd_kafka_queue_new(asker->get()));
    const Options options(
        rd_kafka_AdminOptions_new(asker->get(), RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS));
    if (queue == nullptr || options == nullptr)
        throw std::bad_alloc();
    // Waits for transactions that are being ended, so that they count.
    const OwnedError refused(rd_kafka_AdminOptions_set_require_stable_offsets(options.get(), 1));
    const Question question(rd_kafka_ListConsumerGroupOffsets_new(group.c_str(), nullptr));
    rd_kafka_ListConsumerGroupOffsets_t* questions[] = {question.get()};
    rd_kafka_ListConsumerGroupOffsets(asker->get(), questions, 1, options.get(), queue.get());
    while (!is_stopping() && asker->excess().empty())
        if (const OwnedEvent answer(rd_kafka_queue_poll(queue.get(), at_a_time)); answer != nullptr)
            return last_number(answer.get());
    return {RD_KAFKA_RESP_ERR__FAIL, asker->excess(), false, {}};
}

// The number is the offset of a partition. Its topic may change, so the highest of all is taken.
TransactionThread::Result TransactionThread::Shared::last_number(const rd_kafka_event_t* answer) {
    if (const rd_kafka_resp_err_t error =
            rd_kafka_event_error(const_cast<rd_kafka_event_t*>(answer)))
        return {error, rd_kafka_event_error_string(const_cast<rd_kafka_event_t*>(answer))};
    Result result;
    std::size_t count = 0;
    const auto* const found =
        rd_kafka_event_ListConsumerGroupOffsets_result(const_cast<rd_kafka_event_t*>(answer));
    const rd_kafka_group_result_t** const groups =
        rd_kafka_ListConsumerGroupOffsets_result_groups(found, &count);
    for (std::size_t i = 0; i < count; i++) {
        if (const rd_kafka_error_t* error = rd_kafka_group_result_error(groups[i]))
            return {rd_kafka_error_code(error), rd_kafka_error_string(error)};
        const rd_kafka_topic_partition_list_t* const partitions =
            rd_kafka_group_result_partitions(groups[i]);
        for (int j = 0; partitions != nullptr && j < partitions->cnt; j++) {
            const rd_kafka_topic_partition_t& one = partitions->elems[j];
            if (one.err != RD_KAFKA_RESP_ERR_NO_ERROR)
                return {one.err, rd_kafka_err2str(one.err)};
            if (one.offset >= 0)
                result.committed = std::max(result.committed.value_or(0), one.offset);
        }
    }
    return result;
}

TransactionThread::Result TransactionThread::Shared::commit() {
    const Partitions offsets(rd_kafka_topic_partition_list_new(1));
    const GroupMetadata metadata(rd_kafka_consumer_group_metadata_new(group.c_str()));
    if (offsets == nullptr || metadata == nullptr)
        throw std::bad_alloc();
    rd_kafka_topic_partition_list_add(offsets.get(), topic.c_str(), 0)->offset = number;
    if (const OwnedError error = repeat([&] {
            return rd_kafka_send_offsets_to_transaction(handle, offsets.get(), metadata.get(),
                                                        at_a_time);
        })) {
        Result result = result_of(error);
        // Nothing was committed, even if the library calls the error something else.
        result.must_abort = rd_kafka_error_is_fatal(error.get()) == 0;
        return result;
    }
    return result_of(repeat([&] { return rd_kafka_commit_transaction(handle, at_a_time); }));
}

TransactionThread::Result TransactionThread::Shared::perform(Task what) {
    switch (what) {
        case Task::start:
            return start();
        case Task::commit:
            return commit();
        case Task::abort:
            break;
    }
    return result_of(repeat([&] { return rd_kafka_abort_transaction(handle, at_a_time); }));
}

// Nobody would catch an exception of this thread.
void TransactionThread::Shared::run() noexcept {
    std::unique_lock lock(mutex);
    while (true) {
        changed.wait(lock, [&] { return stops || task.has_value(); });
        if (stops)
            break;
        const Task what = *task;
        lock.unlock();
        Result found{RD_KAFKA_RESP_ERR__FAIL, {}, false, {}};
        try {
            found = perform(what);
        } catch (...) {  // out of memory: the transaction may or may not have ended
        }
        lock.lock();
        task.reset();
        result = std::move(found);
        const std::uint64_t one = 1;
        if (!stops) [[maybe_unused]]
            const ssize_t written = write(wake, &one, sizeof one);
    }
    const std::unique_ptr<Producer> last = std::move(producer);
    lock.unlock();
}

TransactionThread::TransactionThread(std::unique_ptr<Producer> producer,
                                     std::shared_ptr<KafkaClient> asker, std::string group,
                                     int wake)
    : producer_(std::move(producer)), shared_(std::make_shared<Shared>()) {
    shared_->group = std::move(group);
    shared_->handle = producer_->handle();
    shared_->asker = std::move(asker);
    shared_->wake = wake;
    const SignalsBlocked blocked;
    try {
        std::thread([shared = shared_] { shared->run(); }).detach();
    } catch (const std::system_error&) {
        throw std::bad_alloc();
    }
}

TransactionThread::~TransactionThread() {
    producer_->stop_waking();
    const std::lock_guard lock(shared_->mutex);
    shared_->stops = true;
    shared_->producer = std::move(producer_);
    shared_->changed.notify_one();
}

void TransactionThread::begin(Task task, std::int64_t number, const std::string& topic) {
    const std::lock_guard lock(shared_->mutex);
    shared_->number = number;
    shared_->topic = topic;
    shared_->result.reset();
    shared_->task = task;
    shared_->changed.notify_one();
}

std::optional<TransactionThread::Result> TransactionThread::take_result() {
    const std::lock_guard lock(shared_->mutex);
    return std::exchange(shared_->result, std::nullopt);
}

}  // namespace outbox
