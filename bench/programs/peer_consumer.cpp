// Consumers of other systems, as their own documentation writes them. Each does nothing with an event but
// to print its number.
//
//   peer_consumer table|table-notified|pgq|pgmq CONNINFO
//
// table           the relay of an outbox table: claims rows with SKIP LOCKED, marks a claim as published
//                 in one statement, and polls ten times a second
// table-notified  the same, woken by NOTIFY
// pgq             a consumer of PgQ, and its ticker; polls ten times a second
// pgmq            reads 100 messages at a time, waits for more on the server, and deletes them
//
// Prints "ready", and the number of each event on a line of its own, until it is killed. If the environment
// has FAIL_EVERY=n, every n-th attempt fails, and its event is due again after a second; with pgmq after its
// visibility timeout.
#include <poll.h>

#include <string>
#include <thread>

#include "paced.hpp"

namespace outbox::bench {

static constexpr auto pause_when_empty = std::chrono::milliseconds(100);

// Values of a column, of rows that were consumed and of rows that failed, each as an array in its text form.
struct Outcome {
    std::string done = "{";
    std::string failed = "{";
    int failures = 0;

    void add(std::string_view value, bool fails) {
        std::string& list = fails ? failed : done;
        list += (list.size() > 1 ? "," : "") + std::string(value);
        failures += fails;
    }
};

class Consumer {
  public:
    // Prints the numbers of the rows that it consumes. `id` is the column that Outcome lists.
    Outcome consume(const Rows& rows, const char* payload, const char* id) {
        const int payload_number = PQfnumber(rows.get(), payload);
        const int id_number = PQfnumber(rows.get(), id);
        Outcome outcome;
        std::string lines;
        for (int i = 0; i < PQntuples(rows.get()); i++) {
            const bool fails = fail_every_ > 0 && ++attempts_ % fail_every_ == 0;
            outcome.add(field(rows, i, id_number), fails);
            if (!fails)
                lines += std::to_string(number_in(field(rows, i, payload_number))) + '\n';
        }
        outcome.done += '}';
        outcome.failed += '}';
        std::fwrite(lines.data(), 1, lines.size(), stdout);
        std::fflush(stdout);
        return outcome;
    }

  private:
    const char* wanted_ = std::getenv("FAIL_EVERY");
    long fail_every_ = wanted_ != nullptr ? std::atol(wanted_) : 0;
    long attempts_ = 0;
};

static void tell_ready() {
    std::puts("ready");
    std::fflush(stdout);
}

// Waits for a notification, and takes those that are there.
static void wait_for_notification(PGconn* connection) {
    pollfd descriptor{PQsocket(connection), POLLIN, 0};
    poll(&descriptor, 1, static_cast<int>(pause_when_empty.count()));
    PQconsumeInput(connection);
    while (PGnotify* notification = PQnotifies(connection))
        PQfreemem(notification);
}

[[noreturn]] static void relay_table(Connection& connection, bool notified) {
    connection.prepare(
        "claim",
        "WITH cte AS ("
        " SELECT id FROM app_outbox"
        "  WHERE published_at IS NULL AND (next_retry_at IS NULL OR next_retry_at <= now())"
        "  ORDER BY occurred_at LIMIT 200 FOR UPDATE SKIP LOCKED)"
        "UPDATE app_outbox o SET lock_token = $1, locked_at = now() FROM cte WHERE o.id = cte.id "
        "RETURNING o.id::text, convert_from(o.payload, 'UTF8') AS payload");
    connection.prepare("mark",
                       "UPDATE app_outbox SET published_at = now(), lock_token = NULL, "
                       "locked_at = NULL WHERE id = ANY ($1::uuid[]) AND lock_token = $2");
    connection.prepare("retry",
                       "UPDATE app_outbox SET publish_attempts = publish_attempts + 1, "
                       "next_retry_at = now() + interval '1 s', lock_token = NULL, "
                       "locked_at = NULL WHERE id = ANY ($1::uuid[]) AND lock_token = $2");
    if (notified)
        connection.execute("LISTEN app_outbox");
    Consumer consumer;
    tell_ready();
    for (long batch = 1;; batch++) {
        const std::string token = "relay-" + std::to_string(batch);
        const Rows claimed = connection.execute_prepared("claim", {Parameter::text(token.c_str())});
        if (PQntuples(claimed.get()) == 0) {
            if (notified)
                wait_for_notification(connection.get());
            else
                std::this_thread::sleep_for(pause_when_empty);
            continue;
        }
        const Outcome outcome = consumer.consume(claimed, "payload", "id");
        connection.execute_prepared(
            "mark", {Parameter::text(outcome.done.c_str()), Parameter::text(token.c_str())});
        if (outcome.failures > 0)
            connection.execute_prepared(
                "retry", {Parameter::text(outcome.failed.c_str()), Parameter::text(token.c_str())});
    }
}

[[noreturn]] static void consume_pgq(Connection& connection) {
    connection.prepare("next", "SELECT pgq.next_batch('bench', 'bench')::text");
    connection.prepare("read", "SELECT ev_id::text, ev_data FROM pgq.get_batch_events($1::bigint)");
    connection.prepare("retry",
                       "SELECT pgq.event_retry($1::bigint, id, 1) FROM unnest($2::bigint[]) AS id");
    connection.prepare("finish", "SELECT pgq.finish_batch($1::bigint)");
    connection.prepare("tick", "SELECT pgq.maint_retry_events(), pgq.ticker('bench')");
    Consumer consumer;
    tell_ready();
    while (true) {
        const Rows batch = connection.execute_prepared("next", {});
        if (PQgetisnull(batch.get(), 0, 0)) {
            std::this_thread::sleep_for(pause_when_empty);
            connection.execute_prepared("tick", {});
            continue;
        }
        const std::string number(field(batch, 0, 0));
        const Outcome outcome =
            consumer.consume(connection.execute_prepared("read", {Parameter::text(number.c_str())}),
                             "ev_data", "ev_id");
        if (outcome.failures > 0)
            connection.execute_prepared("retry", {Parameter::text(number.c_str()),
                                                  Parameter::text(outcome.failed.c_str())});
        connection.execute_prepared("finish", {Parameter::text(number.c_str())});
    }
}

[[noreturn]] static void consume_pgmq(Connection& connection) {
    connection.prepare("read",
                       "SELECT msg_id::text, message::text FROM "
                       "pgmq.read_with_poll('bench', 30, 100, 5, 100)");
    connection.prepare("delete", "SELECT pgmq.delete('bench', $1::bigint[])");
    Consumer consumer;
    tell_ready();
    while (true) {
        const Rows read = connection.execute_prepared("read", {});
        if (PQntuples(read.get()) == 0)
            continue;
        const Outcome outcome = consumer.consume(read, "message", "msg_id");
        connection.execute_prepared("delete", {Parameter::text(outcome.done.c_str())});
    }
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    using namespace outbox::bench;
    const std::string_view kind = argc == 3 ? argv[1] : "";
    if (kind != "table" && kind != "table-notified" && kind != "pgq" && kind != "pgmq")
        die("usage", "peer_consumer table|table-notified|pgq|pgmq CONNINFO");
    Connection connection(argv[2]);
    if (kind == "pgq")
        consume_pgq(connection);
    if (kind == "pgmq")
        consume_pgmq(connection);
    relay_table(connection, kind == "table-notified");
}
