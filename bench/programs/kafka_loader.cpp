// A bare producer on librdkafka, as rdkafka_performance -P is: it produces records as fast as the
// library takes them, with the settings of the relay, and waits for the last acknowledgement.
//
//   kafka_loader BROKERS TOPIC RECORDS KEYS PAYLOAD COMPRESSION [headers]
//
// With `headers` a record has those that an event has in the format `attributes`. Prints {"records":
// ..., "seconds": ..., "cpu": ...}; `cpu` are the seconds of processor time of all threads meanwhile.
#include <sys/resource.h>

#include <chrono>
#include <random>
#include <string_view>

#include "kafka.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

static std::size_t acknowledged = 0;

static void note_report(rd_kafka_t*, const rd_kafka_message_t* message, void*) {
    check(message->err, "a record");
    acknowledged++;
}

static double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Loader {
  public:
    Loader(const char* brokers, const char* topic, const char* compression) {
        rd_kafka_conf_t* conf = configuration({{"bootstrap.servers", brokers},
                                               {"enable.idempotence", "true"},
                                               {"enable.gapless.guarantee", "true"},
                                               {"message.timeout.ms", "0"},
                                               {"log_level", "3"},
                                               {"queue.buffering.max.kbytes", "2097151"},
                                               {"linger.ms", "0"},
                                               {"batch.num.messages", "10000"},
                                               {"message.max.bytes", "1000000"},
                                               {"socket.nagle.disable", "true"},
                                               {"partitioner", "murmur2_random"},
                                               {"compression.codec", compression}});
        rd_kafka_conf_set_dr_msg_cb(conf, note_report);
        client_ = client(RD_KAFKA_PRODUCER, conf);
        partitions_of(client_.get(), topic);  // connects
        topic_ = rd_kafka_topic_new(client_.get(), topic, nullptr);
    }
    ~Loader() { rd_kafka_topic_destroy(topic_); }
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    void produce(std::size_t number, const std::string& key, std::string_view payload,
                 bool with_headers) {
        rd_kafka_headers_t* headers = with_headers ? headers_of(number, key) : nullptr;
        while (true) {
            const rd_kafka_resp_err_t error = rd_kafka_producev(
                client_.get(), RD_KAFKA_V_RKT(topic_), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                RD_KAFKA_V_KEY(key.data(), key.size()),
                RD_KAFKA_V_VALUE(const_cast<char*>(payload.data()), payload.size()),
                RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END);
            if (error == RD_KAFKA_RESP_ERR_NO_ERROR)
                return;
            if (error != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                check(error, "producev");
            rd_kafka_poll(client_.get(), 10);
        }
    }

    void poll(int milliseconds) { rd_kafka_poll(client_.get(), milliseconds); }

  private:
    // The headers of an event, with an id and a time of its own.
    rd_kafka_headers_t* headers_of(std::size_t number, const std::string& key) {
        rd_kafka_headers_t* headers = rd_kafka_headers_new(8);
        const auto add = [&](const char* name, std::string_view value) {
            check(rd_kafka_header_add(headers, name, -1, value.data(),
                                      static_cast<ssize_t>(value.size())),
                  name);
        };
        char id[37], time[28], version[21];
        const std::uint64_t random = random_();
        std::snprintf(id, sizeof id, "0190f3a4-%04x-7%03x-9%03x-%012llx",
                      static_cast<unsigned>(number / 1000 & 0xffff),
                      static_cast<unsigned>(random & 0xfff),
                      static_cast<unsigned>(random >> 12 & 0xfff),
                      static_cast<unsigned long long>(random >> 16));
        std::snprintf(time, sizeof time, "2026-01-31T10:20:30.%06uZ",
                      static_cast<unsigned>(number % 1'000'000));
        std::snprintf(version, sizeof version, "%zu", number);
        add("event_id", id);
        add("event_type", "AccountChanged");
        add("aggregate_type", "account");
        add("aggregate_id", key);
        add("version", version);
        add("schema_version", "1");
        add("occurred_at", time);
        add("content_type", "application/json");
        return headers;
    }

    KafkaClient client_;
    rd_kafka_topic_t* topic_ = nullptr;
    std::mt19937_64 random_;
};

static void load(char** arguments, bool with_headers) {
    const std::size_t records = std::strtoull(arguments[3], nullptr, 10);
    const std::size_t keys = std::strtoull(arguments[4], nullptr, 10);
    const std::string_view payload = arguments[5];
    Loader loader(arguments[1], arguments[2], arguments[6]);
    const Clock::time_point start = Clock::now();
    const double cpu = cpu_seconds();
    std::string key;
    for (std::size_t number = 0; number < records; number++) {
        key = 'a';
        key += std::to_string(number * 7919 % keys);
        loader.produce(number, key, payload, with_headers);
        if (number % 100 == 0)
            loader.poll(0);
    }
    while (acknowledged < records)
        loader.poll(100);
    std::printf("{\"records\": %zu, \"seconds\": %.6f, \"cpu\": %.6f}\n", records,
                std::chrono::duration<double>(Clock::now() - start).count(), cpu_seconds() - cpu);
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 7 && argc != 8)
        outbox::bench::die("usage",
                           "kafka_loader BROKERS TOPIC RECORDS KEYS PAYLOAD COMPRESSION [headers]");
    outbox::bench::load(argv, argc == 8);
}
