// Measures how fast events are applied: by the client's consumer, or by a program without an inbox.
// The latter does the same insert and upsert for each event, in batches of one transaction, on the
// same number of connections.
//
//   apply bare|consumer queue|execute CONNINFO EVENTS CONNECTIONS BATCH
//
// With `queue` the statements of a batch are sent together; with `execute` each waits for its
// answer. The events are made before the clock starts: 10,000 keys in turns, with rising versions.
// Prints {"events": ..., "seconds": ...}.
#include <inbox/consumer.hpp>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "connection.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

static constexpr int keys = 10'000;
static constexpr const char* insert_statement =
    "INSERT INTO history (event_id, account_id, version, payload) VALUES ($1::uuid, $2, "
    "$3::bigint, $4::jsonb)";
static constexpr const char* upsert_statement =
    "INSERT INTO account AS old (account_id, version, payload) VALUES ($1, $2::bigint, $3::jsonb) "
    "ON CONFLICT (account_id) DO UPDATE SET version = excluded.version, payload = excluded.payload "
    "WHERE old.version < excluded.version";

static std::string new_id(std::mt19937_64& random, std::uint64_t milliseconds) {
    char id[37];
    std::snprintf(id, sizeof(id), "%08llx-%04llx-7%03llx-8%03llx-%012llx",
                  static_cast<unsigned long long>(milliseconds >> 16 & 0xffffffff),
                  static_cast<unsigned long long>(milliseconds & 0xffff),
                  static_cast<unsigned long long>(random() & 0xfff),
                  static_cast<unsigned long long>(random() & 0xfff),
                  static_cast<unsigned long long>(random() & 0xffffffffffff));
    return id;
}

static std::vector<inbox::Delivery> make_deliveries(int events) {
    std::mt19937_64 random(std::random_device{}());
    const auto now =
        std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
    const std::string payload = "{\"owner\": \"" + std::string(180, 'x') + "\"}";
    std::vector<inbox::Delivery> deliveries(events);
    for (int i = 0; i < events; i++) {
        inbox::Delivery& delivery = deliveries[i];
        inbox::Event& event = delivery.event;
        event.id = new_id(random, now.time_since_epoch().count() / 1000 + i / 100);
        event.aggregate_type = "account";
        event.aggregate_id = "a" + std::to_string(i % keys);
        event.ordering_key = event.aggregate_id;
        event.topic = "account.events";
        event.type = "AccountChanged";
        event.version = 1 + i / keys;
        event.payload = payload;
        event.occurred_at = now + std::chrono::microseconds(i);
        delivery.source = "bench";
        delivery.message_id = std::to_string(i);
        delivery.published_at = event.occurred_at;
        delivery.handle = delivery.message_id;
        delivery.size = payload.size();
    }
    return deliveries;
}

// Hands out events in memory, and ends the consumer when all of them are acknowledged.
class MemorySource : public inbox::Source {
  public:
    explicit MemorySource(std::vector<inbox::Delivery>& deliveries) : deliveries_(deliveries) {}
    void run_until_acked(inbox::Consumer& consumer) { consumer_ = &consumer; }

    std::string subscription() const override { return "bench"; }
    void open() override {}
    std::vector<inbox::Delivery> receive(std::size_t max_messages,
                                         std::chrono::milliseconds wait) override {
        if (next_ == deliveries_.size())
            std::this_thread::sleep_for(wait);
        const std::size_t end = std::min(deliveries_.size(), next_ + max_messages);
        std::vector<inbox::Delivery> some(
            std::make_move_iterator(deliveries_.begin() + static_cast<long>(next_)),
            std::make_move_iterator(deliveries_.begin() + static_cast<long>(end)));
        next_ = end;
        return some;
    }
    void ack(std::span<const inbox::Delivery> deliveries) override {
        if ((acked_ += deliveries.size()) == deliveries_.size()) {
            finished_ = Clock::now();
            consumer_->stop();
        }
    }
    void nack(std::span<const inbox::Delivery>) override { die("apply", "an event failed"); }
    void seek(inbox::Time) override {}
    void close(std::chrono::milliseconds) noexcept override {}

    Clock::time_point finished() const { return finished_; }

  private:
    std::vector<inbox::Delivery>& deliveries_;
    inbox::Consumer* consumer_ = nullptr;
    std::size_t next_ = 0;
    std::atomic<std::size_t> acked_ = 0;
    Clock::time_point finished_;
};

struct Arguments {
    bool queue;
    const char* conninfo;
    int connections;
    int batch;
};

static double consume(const Arguments& arguments, std::vector<inbox::Delivery> deliveries) {
    auto owned = std::make_unique<MemorySource>(deliveries);
    MemorySource& source = *owned;
    inbox::ConsumerOptions options;
    options.name = "bench";
    options.connections = arguments.connections;
    options.batch_size = arguments.batch;
    options.max_outstanding_messages =
        4 * static_cast<std::size_t>(arguments.connections * arguments.batch);
    options.log = [](inbox::Level level, const std::string& message) {
        if (level >= inbox::Level::error)
            die("apply", message.c_str());
    };
    const auto handler = [&](inbox::Transaction& transaction, const inbox::Event& event) {
        const std::string version = std::to_string(*event.version);
        if (arguments.queue) {
            transaction.queue(insert_statement,
                              {event.id, event.aggregate_id, version, event.payload});
            transaction.queue(upsert_statement, {event.aggregate_id, version, event.payload});
        } else {
            transaction.execute(insert_statement,
                                {event.id, event.aggregate_id, version, event.payload});
            transaction.execute(upsert_statement, {event.aggregate_id, version, event.payload});
        }
    };
    inbox::Consumer consumer(
        options, std::move(owned), [&] { return PQconnectdb(arguments.conninfo); }, handler);
    source.run_until_acked(consumer);
    // Lives until the time is read, because the consumer owns the source.
    const Clock::time_point start = Clock::now();
    consumer.run();
    return std::chrono::duration<double>(source.finished() - start).count();
}

class Writer {
  public:
    Writer(const Arguments& arguments) : arguments_(arguments), connection_(arguments.conninfo) {
        connection_.prepare("insert", insert_statement);
        connection_.prepare("upsert", upsert_statement);
    }

    void write(std::span<const inbox::Event* const> events) {
        PGconn* connection = connection_.get();
        if (arguments_.queue)
            PQenterPipelineMode(connection);
        send("BEGIN");
        for (const inbox::Event* event : events) {
            const std::string version = std::to_string(*event->version);
            send_prepared("insert", {event->id.c_str(), event->aggregate_id.c_str(),
                                     version.c_str(), event->payload->c_str()});
            send_prepared("upsert",
                          {event->aggregate_id.c_str(), version.c_str(), event->payload->c_str()});
        }
        send("COMMIT");
        if (!arguments_.queue)
            return;
        PQpipelineSync(connection);
        for (std::size_t i = 0; i < 2 * events.size() + 2; i++)
            await();
        const Rows sync(PQgetResult(connection));
        PQexitPipelineMode(connection);
    }

  private:
    void send(const char* statement) {
        if (!PQsendQueryParams(connection_.get(), statement, 0, nullptr, nullptr, nullptr, nullptr,
                               0))
            die(statement, PQerrorMessage(connection_.get()));
        if (!arguments_.queue)
            await();
    }

    void send_prepared(const char* name, const std::vector<const char*>& values) {
        if (!PQsendQueryPrepared(connection_.get(), name, static_cast<int>(values.size()),
                                 values.data(), nullptr, nullptr, 0))
            die(name, PQerrorMessage(connection_.get()));
        if (!arguments_.queue)
            await();
    }

    void await() {
        const Rows result(PQgetResult(connection_.get()));
        if (PQresultStatus(result.get()) != PGRES_COMMAND_OK)
            die("apply", PQerrorMessage(connection_.get()));
        PQgetResult(connection_.get());
    }

    const Arguments& arguments_;
    Connection connection_;
};

// Each key belongs to one connection, so that its events are written in order.
static double write_bare(const Arguments& arguments,
                         const std::vector<inbox::Delivery>& deliveries) {
    const auto connections = static_cast<std::size_t>(arguments.connections);
    std::vector<std::vector<const inbox::Event*>> shares(connections);
    for (std::size_t i = 0; i < deliveries.size(); i++)
        shares[i % keys % connections].push_back(&deliveries[i].event);

    const Clock::time_point start = Clock::now();
    std::vector<std::thread> threads;
    for (const auto& share : shares)
        threads.emplace_back([&] {
            Writer writer(arguments);
            for (std::size_t at = 0; at < share.size();
                 at += static_cast<std::size_t>(arguments.batch))
                writer.write(std::span(share).subspan(
                    at, std::min(share.size() - at, static_cast<std::size_t>(arguments.batch))));
        });
    for (std::thread& thread : threads)
        thread.join();
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    using namespace outbox::bench;
    if (argc != 7)
        die("usage", "apply bare|consumer queue|execute CONNINFO EVENTS CONNECTIONS BATCH");
    const Arguments arguments{std::string_view(argv[2]) == "queue", argv[3], std::atoi(argv[5]),
                              std::atoi(argv[6])};
    std::vector<inbox::Delivery> deliveries = make_deliveries(std::atoi(argv[4]));
    const double seconds = std::string_view(argv[1]) == "bare"
                               ? write_bare(arguments, deliveries)
                               : consume(arguments, std::move(deliveries));
    std::printf("{\"events\": %s, \"seconds\": %.6f}\n", argv[4], seconds);
}
