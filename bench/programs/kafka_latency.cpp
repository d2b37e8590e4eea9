// Measures the time from commit to arrival at a consumer of Kafka: a paced producer and the consumer in
// one process, on one clock.
//
//   kafka_latency CONNINFO RATE SECONDS SESSIONS BROKERS TOPIC read_committed|read_uncommitted [table]
//
// Commits RATE transactions per second in SESSIONS sessions. Each changes a row and enqueues an event
// with its number; with `table` it inserts into the table app_outbox instead, for Debezium. Prints the
// same as `latency`.
#include "kafka.hpp"
#include "paced.hpp"

namespace outbox::bench {

static constexpr const char* change_and_insert =
    "WITH changed AS (UPDATE account SET version = version + 1 WHERE id = $1 RETURNING version) "
    "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) "
    "SELECT gen_random_uuid(), 'account', $1::text, 'AccountChanged', version, "
    "convert_to($2, 'UTF8') FROM changed";

// A consumer at the end of each partition.
static KafkaClient consumer(const char* brokers, const char* topic, const char* isolation) {
    KafkaClient made = client(RD_KAFKA_CONSUMER, configuration({{"bootstrap.servers", brokers},
                                                                {"group.id", "bench"},
                                                                {"enable.auto.commit", "false"},
                                                                {"isolation.level", isolation},
                                                                {"socket.nagle.disable", "true"}}));
    rd_kafka_poll_set_consumer(made.get());
    const std::int32_t partitions = partitions_of(made.get(), topic);
    rd_kafka_topic_partition_list_t* list = rd_kafka_topic_partition_list_new(partitions);
    for (std::int32_t partition = 0; partition < partitions; partition++) {
        std::int64_t low = 0, high = 0;
        check(rd_kafka_query_watermark_offsets(made.get(), topic, partition, &low, &high, 30'000),
              topic);
        rd_kafka_topic_partition_list_add(list, topic, partition)->offset = high;
    }
    check(rd_kafka_assign(made.get(), list), topic);
    rd_kafka_topic_partition_list_destroy(list);
    return made;
}

static void receive(Run& run, rd_kafka_t* client) {
    while (true) {
        rd_kafka_message_t* message = rd_kafka_consumer_poll(client, 1000);
        const Time now = Clock::now();
        if (message == nullptr)
            continue;
        check(message->err, "a record");
        note_arrival(run, number_in({static_cast<const char*>(message->payload), message->len}),
                     now);
        rd_kafka_message_destroy(message);
    }
}

static void measure(char** arguments, const char* statement) {
    const double rate = std::atof(arguments[2]);
    const auto count = static_cast<std::size_t>(rate * std::atof(arguments[3]));
    Run run(count, count);
    const KafkaClient client = consumer(arguments[5], arguments[6], arguments[7]);
    std::thread(receive, std::ref(run), client.get()).detach();
    produce_all(run, arguments[1], rate, std::strtoull(arguments[4], nullptr, 10), statement);
    std::_Exit(0);  // the consumer thread still waits for records
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 8 && argc != 9)
        outbox::bench::die("usage",
                           "kafka_latency CONNINFO RATE SECONDS SESSIONS BROKERS TOPIC "
                           "read_committed|read_uncommitted [table]");
    outbox::bench::measure(
        argv, argc == 9 ? outbox::bench::change_and_insert : outbox::bench::change_and_enqueue);
}
