// A bare publisher on rabbitmq-c: it publishes messages as fast as the server confirms them, with a window
// of messages in flight.
//
//   rabbitmq_loader PORT QUEUE MESSAGES PAYLOAD WINDOW
//
// A message has the properties and headers that an event has in the format `attributes`, and is mandatory.
// Prints {"messages": ..., "seconds": ..., "cpu": ...}; `cpu` are the seconds of processor time meanwhile.
#if __has_include(<rabbitmq-c/framing.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_tcp_socket.h>
#endif

#include <sys/resource.h>
#include <sys/time.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

[[noreturn]] static void die(const char* what) {
    std::fprintf(stderr, "rabbitmq_loader: %s\n", what);
    std::exit(1);
}

static amqp_bytes_t bytes_of(std::string_view text) {
    return {text.size(), const_cast<char*>(text.data())};
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
    explicit Loader(int port) : connection_(amqp_new_connection()) {
        amqp_socket_t* socket = amqp_tcp_socket_new(connection_);
        if (socket == nullptr || amqp_socket_open(socket, "127.0.0.1", port) != AMQP_STATUS_OK)
            die("could not connect");
        if (amqp_login(connection_, "/", 0, AMQP_DEFAULT_FRAME_SIZE, 0, AMQP_SASL_METHOD_PLAIN,
                       "guest", "guest")
                .reply_type != AMQP_RESPONSE_NORMAL)
            die("could not log in");
        if (amqp_channel_open(connection_, 1) == nullptr ||
            amqp_confirm_select(connection_, 1) == nullptr)
            die("could not open a channel");
    }
    ~Loader() { amqp_destroy_connection(connection_); }
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    void publish(std::size_t number, std::string_view queue, std::string_view payload) {
        char id[37], time[28], version[21], key[24];
        const std::uint64_t random = random_();
        std::snprintf(id, sizeof id, "0190f3a4-%04x-7%03x-9%03x-%012llx",
                      static_cast<unsigned>(number / 1000 & 0xffff),
                      static_cast<unsigned>(random & 0xfff),
                      static_cast<unsigned>(random >> 12 & 0xfff),
                      static_cast<unsigned long long>(random >> 16));
        std::snprintf(time, sizeof time, "2026-01-31T10:20:30.%06uZ",
                      static_cast<unsigned>(number % 1'000'000));
        std::snprintf(version, sizeof version, "%zu", number);
        std::snprintf(key, sizeof key, "a%zu", number * 7919 % 10'000);
        std::array headers{header("event_id", id),
                           header("event_type", "AccountChanged"),
                           header("aggregate_type", "account"),
                           header("aggregate_id", key),
                           header("version", version),
                           header("schema_version", "1"),
                           header("occurred_at", time),
                           header("content_type", "application/json"),
                           header("ordering_key", key)};
        amqp_basic_properties_t properties{};
        properties._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_HEADERS_FLAG |
                            AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG |
                            AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_TYPE_FLAG;
        properties.content_type = bytes_of("application/json");
        properties.headers = {static_cast<int>(headers.size()), headers.data()};
        properties.delivery_mode = AMQP_DELIVERY_PERSISTENT;
        properties.message_id = bytes_of(id);
        properties.timestamp = 1'769'854'830;
        properties.type = bytes_of("AccountChanged");
        if (amqp_basic_publish(connection_, 1, amqp_empty_bytes, bytes_of(queue), 1, 0, &properties,
                               bytes_of(payload)) != AMQP_STATUS_OK)
            die("could not publish");
    }

    // Takes confirmations; waits for one if `wait`.
    void take(bool wait) {
        timeval limit{wait ? 60 : 0, 0};
        amqp_frame_t frame;
        while (true) {
            amqp_maybe_release_buffers(connection_);
            const int status = amqp_simple_wait_frame_noblock(connection_, &frame, &limit);
            if (status == AMQP_STATUS_TIMEOUT && limit.tv_sec == 0)
                return;
            if (status != AMQP_STATUS_OK || frame.frame_type != AMQP_FRAME_METHOD ||
                frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
                die("something other than a confirmation came");
            const auto& ack = *static_cast<amqp_basic_ack_t*>(frame.payload.method.decoded);
            if (ack.multiple) {
                confirmed += ack.delivery_tag >= next_ ? ack.delivery_tag - next_ + 1 - early_ : 0;
                next_ = ack.delivery_tag + 1;
                early_ = 0;
            } else {
                confirmed++;
                if (ack.delivery_tag == next_)
                    next_++;
                else
                    early_++;
            }
            limit = {0, 0};
        }
    }

    std::uint64_t confirmed = 0;

  private:
    static amqp_table_entry_t header(std::string_view name, std::string_view value) {
        amqp_table_entry_t entry{};
        entry.key = bytes_of(name);
        entry.value.kind = AMQP_FIELD_KIND_UTF8;
        entry.value.value.bytes = bytes_of(value);
        return entry;
    }

    amqp_connection_state_t connection_;
    std::uint64_t next_ = 1;   // the first tag that may be without a confirmation
    std::uint64_t early_ = 0;  // of those behind it, the ones that are confirmed
    std::mt19937_64 random_;
};

static void load(char** arguments) {
    const std::size_t messages = std::strtoull(arguments[3], nullptr, 10);
    const std::size_t window = std::strtoull(arguments[5], nullptr, 10);
    Loader loader(std::atoi(arguments[1]));
    const Clock::time_point start = Clock::now();
    const double cpu = cpu_seconds();
    for (std::size_t number = 0; number < messages; number++) {
        while (number - loader.confirmed >= window)
            loader.take(true);
        loader.publish(number, arguments[2], arguments[4]);
        if (number % 100 == 0)
            loader.take(false);
    }
    while (loader.confirmed < messages)
        loader.take(true);
    std::printf("{\"messages\": %zu, \"seconds\": %.6f, \"cpu\": %.6f}\n", messages,
                std::chrono::duration<double>(Clock::now() - start).count(), cpu_seconds() - cpu);
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 6)
        outbox::bench::die("usage: rabbitmq_loader PORT QUEUE MESSAGES PAYLOAD WINDOW");
    outbox::bench::load(argv);
}
