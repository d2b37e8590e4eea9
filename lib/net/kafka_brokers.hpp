// Counts the brokers that a cluster of Kafka names. librdkafka starts a thread for each, and one
// answer may name up to 10,000 of them. Without a limit they would use up the memory and the process
// numbers of the machine.
//
// Threads of the library count, and wake. An object must outlive those of its handle.
#pragma once

#include <librdkafka/rdkafka.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace outbox {

class KafkaBrokers {
  public:
    // Of one handle, and of all handles whose threads have not ended.
    static constexpr int most = 1000;

    // `wake` is an eventfd that becomes readable when there are too many, or -1.
    explicit KafkaBrokers(int wake = -1) : wake_(wake) {}
    KafkaBrokers(const KafkaBrokers&) = delete;
    KafkaBrokers& operator=(const KafkaBrokers&) = delete;

    // Must be called before the handle is made.
    void count(rd_kafka_conf_t* conf) noexcept {
        rd_kafka_conf_interceptor_add_on_new(conf, name, begin, this);
    }

    // Returns why the handle must be given up, or an empty string.
    std::string excess() const {
        return count_ > most ? "the cluster names more than " + std::to_string(most) + " brokers"
                             : "";
    }
    static bool are_too_many() noexcept { return all > most; }

    void wake_up() noexcept {
        const std::lock_guard lock(mutex_);
        const std::uint64_t one = 1;
        if (wake_ >= 0)
            static_cast<void>(write(wake_, &one, sizeof one) == 0);
    }
    // Nothing writes to the descriptor afterwards.
    void stop_waking() noexcept {
        const std::lock_guard lock(mutex_);
        wake_ = -1;
    }

    // For a handle that is never destroyed: the object stays for its threads.
    void keep(std::shared_ptr<KafkaBrokers> itself) noexcept { itself_ = std::move(itself); }

  private:
    static constexpr const char* name = "pg_outbox";
    inline static std::atomic<int> all = 0;

    static rd_kafka_resp_err_t begin(rd_kafka_t* handle, const rd_kafka_conf_t*, void* self, char*,
                                     std::size_t) noexcept {
        rd_kafka_interceptor_add_on_thread_start(handle, name, started, self);
        return rd_kafka_interceptor_add_on_thread_exit(handle, name, ended, self);
    }

    static rd_kafka_resp_err_t started(rd_kafka_t*, rd_kafka_thread_type_t type, const char*,
                                       void* self) noexcept {
        if (type != RD_KAFKA_THREAD_BROKER)
            return RD_KAFKA_RESP_ERR_NO_ERROR;
        all++;
        auto* const brokers = static_cast<KafkaBrokers*>(self);
        if (++brokers->count_ == most + 1)
            brokers->wake_up();
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    }

    static rd_kafka_resp_err_t ended(rd_kafka_t*, rd_kafka_thread_type_t type, const char*,
                                     void* self) noexcept {
        if (type == RD_KAFKA_THREAD_BROKER) {
            all--;
            static_cast<KafkaBrokers*>(self)->count_--;
        }
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    }

    std::atomic<int> count_ = 0;
    std::mutex mutex_;
    int wake_;
    std::shared_ptr<KafkaBrokers> itself_;
};

}  // namespace outbox
