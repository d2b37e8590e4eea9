// A bare publisher on libmosquitto: it keeps WINDOW messages of QoS 1 in flight, in one thread, and waits
// for the last acknowledgement.
//
//   mqtt_loader PORT TOPIC MESSAGES KEYS PAYLOAD WINDOW [properties]
//
// With `properties` a message has those that an event has in the format `attributes`. Prints
// {"messages": ..., "seconds": ..., "cpu": ...}; `cpu` are the seconds of processor time meanwhile.
#include <mosquitto.h>
#include <mqtt_protocol.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "connection.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

static std::size_t acknowledged = 0;
static bool connected = false;

static void check(int error, const char* what) {
    if (error != MOSQ_ERR_SUCCESS)
        die(what, mosquitto_strerror(error));
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
    Loader(int port, std::size_t window) {
        check(mosquitto_lib_init(), "mosquitto_lib_init");
        client_ = mosquitto_new("mqtt_loader", true, nullptr);
        if (client_ == nullptr)
            die("mosquitto_new", "no memory");
        check(mosquitto_int_option(client_, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5),
              "protocol");
        check(mosquitto_int_option(client_, MOSQ_OPT_SEND_MAXIMUM, static_cast<int>(window)),
              "window");
        check(mosquitto_int_option(client_, MOSQ_OPT_TCP_NODELAY, 1), "nodelay");
        mosquitto_connect_callback_set(client_,
                                       [](mosquitto*, void*, int code) { connected = code == 0; });
        mosquitto_publish_v5_callback_set(
            client_, [](mosquitto*, void*, int, int code, const mosquitto_property*) {
                if (code >= 0x80)
                    die("a message", mosquitto_reason_string(code));
                acknowledged++;
            });
        check(mosquitto_connect(client_, "127.0.0.1", port, 60), "connect");
        while (!connected)
            loop(100);
    }
    ~Loader() { mosquitto_destroy(client_); }
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    void publish(const char* topic, std::size_t number, const std::string& key,
                 std::string_view payload, bool with_properties) {
        mosquitto_property* properties = with_properties ? properties_of(number, key) : nullptr;
        check(mosquitto_publish_v5(client_, nullptr, topic, static_cast<int>(payload.size()),
                                   payload.data(), 1, false, properties),
              "publish");
        mosquitto_property_free_all(&properties);
    }

    void loop(int milliseconds) { check(mosquitto_loop(client_, milliseconds, 1), "loop"); }

  private:
    // The properties of an event, with an id and a time of its own.
    mosquitto_property* properties_of(std::size_t number, const std::string& key) {
        mosquitto_property* properties = nullptr;
        const auto add = [&](const char* name, const char* value) {
            check(mosquitto_property_add_string_pair(&properties, MQTT_PROP_USER_PROPERTY, name,
                                                     value),
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
        check(
            mosquitto_property_add_string(&properties, MQTT_PROP_CONTENT_TYPE, "application/json"),
            "content type");
        add("ordering_key", key.c_str());
        add("event_id", id);
        add("event_type", "AccountChanged");
        add("aggregate_type", "account");
        add("aggregate_id", key.c_str());
        add("version", version);
        add("schema_version", "1");
        add("occurred_at", time);
        return properties;
    }

    mosquitto* client_ = nullptr;
    std::mt19937_64 random_;
};

static void load(char** arguments, bool with_properties) {
    const std::size_t messages = std::strtoull(arguments[3], nullptr, 10);
    const std::size_t keys = std::strtoull(arguments[4], nullptr, 10);
    const std::string_view payload = arguments[5];
    const std::size_t window = std::strtoull(arguments[6], nullptr, 10);
    Loader loader(std::atoi(arguments[1]), window);
    const Clock::time_point start = Clock::now();
    const double cpu = cpu_seconds();
    std::string key;
    for (std::size_t number = 0; number < messages; number++) {
        while (number - acknowledged >= window)
            loader.loop(100);
        key = 'a';
        key += std::to_string(number * 7919 % keys);
        loader.publish(arguments[2], number, key, payload, with_properties);
    }
    while (acknowledged < messages)
        loader.loop(100);
    std::printf("{\"messages\": %zu, \"seconds\": %.6f, \"cpu\": %.6f}\n", messages,
                std::chrono::duration<double>(Clock::now() - start).count(), cpu_seconds() - cpu);
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 7 && argc != 8)
        outbox::bench::die("usage",
                           "mqtt_loader PORT TOPIC MESSAGES KEYS PAYLOAD WINDOW [properties]");
    outbox::bench::load(argv, argc == 8);
}
