// Makes, removes and watches topics.
//
//   kafka_topic BROKERS create TOPIC PARTITIONS
//   kafka_topic BROKERS delete TOPIC
//   kafka_topic BROKERS watch TOPIC RECORDS
//
// `watch` waits until the topic has this number of records, and prints the rate between its first look
// with records and the last one at which some were missing: {"records": ..., "seconds": ...}.
#include <chrono>
#include <string_view>
#include <thread>

#include "kafka.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

static void await(rd_kafka_queue_t* queue, const char* what) {
    rd_kafka_event_t* event = rd_kafka_queue_poll(queue, 60'000);
    if (event == nullptr)
        die(what, "no answer");
    check(rd_kafka_event_error(event), what);
    std::size_t count = 0;
    if (const rd_kafka_CreateTopics_result_t* result = rd_kafka_event_CreateTopics_result(event)) {
        const rd_kafka_topic_result_t** topics =
            rd_kafka_CreateTopics_result_topics(result, &count);
        check(rd_kafka_topic_result_error(topics[0]), what);
    }
    rd_kafka_event_destroy(event);
}

// The topic can be used when its partitions have leaders.
static void await_leaders(rd_kafka_t* client, const char* topic, int partitions) {
    for (int partition = 0; partition < partitions; partition++) {
        std::int64_t low = 0, high = 0;
        while (rd_kafka_query_watermark_offsets(client, topic, partition, &low, &high, 10'000) !=
               RD_KAFKA_RESP_ERR_NO_ERROR)
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

static void create(rd_kafka_t* client, const char* name, int partitions) {
    rd_kafka_queue_t* queue = rd_kafka_queue_new(client);
    rd_kafka_NewTopic_t* topic = rd_kafka_NewTopic_new(name, partitions, 1, nullptr, 0);
    rd_kafka_CreateTopics(client, &topic, 1, nullptr, queue);
    await(queue, name);
    rd_kafka_NewTopic_destroy(topic);
    rd_kafka_queue_destroy(queue);
    await_leaders(client, name, partitions);
}

static void remove(rd_kafka_t* client, const char* name) {
    rd_kafka_queue_t* queue = rd_kafka_queue_new(client);
    rd_kafka_DeleteTopic_t* topic = rd_kafka_DeleteTopic_new(name);
    rd_kafka_DeleteTopics(client, &topic, 1, nullptr, queue);
    await(queue, name);
    rd_kafka_DeleteTopic_destroy(topic);
    rd_kafka_queue_destroy(queue);
}

static std::int64_t records_in(rd_kafka_t* client, const char* topic, std::int32_t partitions) {
    std::int64_t records = 0;
    for (std::int32_t partition = 0; partition < partitions; partition++) {
        std::int64_t low = 0, high = 0;
        check(rd_kafka_query_watermark_offsets(client, topic, partition, &low, &high, 30'000),
              topic);
        records += high - low;
    }
    return records;
}

static void watch(rd_kafka_t* client, const char* topic, std::int64_t wanted) {
    const std::int32_t partitions = partitions_of(client, topic);
    std::int64_t first = 0, last = 0;
    Clock::time_point first_at{}, last_at{};
    while (true) {
        const std::int64_t records = records_in(client, topic, partitions);
        const Clock::time_point now = Clock::now();
        if (records >= wanted)
            break;
        if (first == 0) {
            first = records;
            first_at = now;
        }
        last = records;
        last_at = now;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    std::printf("{\"records\": %lld, \"seconds\": %.6f}\n", static_cast<long long>(last - first),
                std::chrono::duration<double>(last_at - first_at).count());
}

static void run(const char* brokers, std::string_view command, const char* topic,
                const char* number) {
    const KafkaClient made =
        client(RD_KAFKA_PRODUCER, configuration({{"bootstrap.servers", brokers}}));
    if (command == "create")
        create(made.get(), topic, std::atoi(number));
    else if (command == "delete")
        remove(made.get(), topic);
    else
        watch(made.get(), topic, std::atoll(number));
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 5 && (argc != 4 || std::string_view(argv[2]) != "delete"))
        outbox::bench::die("usage", "kafka_topic BROKERS create|delete|watch TOPIC [NUMBER]");
    outbox::bench::run(argv[1], argv[2], argv[3], argc == 5 ? argv[4] : "");
}
