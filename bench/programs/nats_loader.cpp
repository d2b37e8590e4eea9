// A bare producer on nats.c: it publishes to JetStream as fast as the library takes messages, without
// waiting for acknowledgements, and waits for the last one at the end.
//
//   nats_loader URL create SUBJECT                             makes an empty stream for the subject
//   nats_loader URL load SUBJECT MESSAGES PAYLOAD [headers]
//
// Each message has an id of its own. With `headers` it also has those that an event has in the format
// `attributes`. Prints {"messages": ..., "seconds": ..., "cpu": ...}; `cpu` are the seconds of processor
// time of all threads meanwhile.
#include <nats/nats.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

void check(natsStatus status, const char* what) {
    if (status == NATS_OK)
        return;
    std::fprintf(stderr, "nats_loader: %s: %s\n", what, natsStatus_GetText(status));
    std::exit(1);
}

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void fail(jsCtx*, jsPubAckErr* error, void*) {
    std::fprintf(stderr, "nats_loader: %s\n", error->ErrText);
    std::exit(1);
}

class Loader {
  public:
    explicit Loader(const char* url) {
        check(natsConnection_ConnectTo(&connection_, url), "connect");
        jsOptions options;
        jsOptions_Init(&options);
        options.PublishAsync.MaxPending = 10'000;  // as many as the relay has in flight
        options.PublishAsync.ErrHandler = fail;
        check(natsConnection_JetStream(&jetstream_, connection_, &options), "JetStream");
    }
    ~Loader() {
        jsCtx_Destroy(jetstream_);
        natsConnection_Destroy(connection_);
    }
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    void create(const char* subject) {
        js_DeleteStream(jetstream_, "BENCH", nullptr, nullptr);
        jsStreamConfig config;
        jsStreamConfig_Init(&config);
        config.Name = "BENCH";
        config.Subjects = &subject;
        config.SubjectsLen = 1;
        check(js_AddStream(nullptr, jetstream_, &config, nullptr, nullptr), "add the stream");
    }

    void publish(const char* subject, std::size_t number, const std::string& payload,
                 bool with_headers) {
        char id[48];
        std::snprintf(id, sizeof id, "0190f3a4-%04x-7000-9000-%012zx",
                      static_cast<unsigned>(number & 0xffff), number);
        natsMsg* message = nullptr;
        check(natsMsg_Create(&message, subject, nullptr, payload.data(),
                             static_cast<int>(payload.size())),
              "a message");
        if (with_headers)
            add_headers(message, number, id);
        jsPubOptions options;
        jsPubOptions_Init(&options);
        options.MsgId = id;
        check(js_PublishMsgAsync(jetstream_, &message, &options), "publish");
    }

    void wait() { check(js_PublishAsyncComplete(jetstream_, nullptr), "the last answer"); }

  private:
    static void add_headers(natsMsg* message, std::size_t number, const char* id) {
        const std::string version = std::to_string(number);
        const std::string key = "a" + std::to_string(number * 7919 % 10'000);
        const auto add = [&](const char* name, const char* value) {
            check(natsMsgHeader_Set(message, name, value), name);
        };
        add("event_id", id);
        add("event_type", "AccountChanged");
        add("aggregate_type", "account");
        add("aggregate_id", key.c_str());
        add("version", version.c_str());
        add("schema_version", "1");
        add("occurred_at", "2026-01-31T10:20:30.123456Z");
        add("content_type", "application/json");
        add("ordering_key", key.c_str());
    }

    natsConnection* connection_ = nullptr;
    jsCtx* jetstream_ = nullptr;
};

void load(Loader& loader, const char* subject, std::size_t messages, const std::string& payload,
          bool with_headers) {
    const Clock::time_point start = Clock::now();
    const double cpu = cpu_seconds();
    for (std::size_t number = 0; number < messages; number++)
        loader.publish(subject, number, payload, with_headers);
    loader.wait();
    std::printf("{\"messages\": %zu, \"seconds\": %.6f, \"cpu\": %.6f}\n", messages,
                std::chrono::duration<double>(Clock::now() - start).count(), cpu_seconds() - cpu);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 4 && std::strcmp(argv[2], "create") == 0) {
        Loader(argv[1]).create(argv[3]);
    } else if ((argc == 6 || argc == 7) && std::strcmp(argv[2], "load") == 0) {
        Loader loader(argv[1]);
        load(loader, argv[3], std::strtoull(argv[4], nullptr, 10), argv[5], argc == 7);
    } else {
        std::fprintf(stderr,
                     "usage: nats_loader URL create SUBJECT\n"
                     "       nats_loader URL load SUBJECT MESSAGES PAYLOAD [headers]\n");
        return 1;
    }
}
