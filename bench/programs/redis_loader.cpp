// A bare loop on hiredis: XADD with the fields that an event has in the format `attributes`, pipelined.
//
//   redis_loader PORT STREAM ENTRIES KEYS PAYLOAD
//
// Commands are written 500 at a time, and up to 2,000 wait for their answers. Prints {"entries": ..., "seconds":
// ..., "cpu": ...}; `cpu` are the seconds of processor time meanwhile.
#include <hiredis/hiredis.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

namespace outbox::bench {

using Clock = std::chrono::steady_clock;

static constexpr std::size_t batch = 500, max_waiting = 2000;

[[noreturn]] static void die(const char* what, const char* why) {
    std::fprintf(stderr, "redis_loader: %s: %s\n", what, why);
    std::exit(1);
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
    Loader(int port, std::string_view stream, std::string_view payload)
        : context_(redisConnect("127.0.0.1", port)), stream_(stream), payload_(payload) {
        if (context_ == nullptr || context_->err != 0)
            die("connect", context_ == nullptr ? "out of memory" : context_->errstr);
    }
    ~Loader() { redisFree(context_); }
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    void add(std::size_t number, std::string_view key) {
        char id[24], event_id[37], time[28], version[21];
        std::snprintf(id, sizeof id, "%zu-0", number);
        const std::uint64_t random = random_();
        std::snprintf(event_id, sizeof event_id, "0190f3a4-%04x-7%03x-9%03x-%012llx",
                      static_cast<unsigned>(number / 1000 & 0xffff),
                      static_cast<unsigned>(random & 0xfff),
                      static_cast<unsigned>(random >> 12 & 0xfff),
                      static_cast<unsigned long long>(random >> 16));
        std::snprintf(time, sizeof time, "2026-01-31T10:20:30.%06uZ",
                      static_cast<unsigned>(number % 1'000'000));
        std::snprintf(version, sizeof version, "%zu", number);
        const std::string_view arguments[] = {"XADD",
                                              stream_,
                                              id,
                                              "event_id",
                                              event_id,
                                              "event_type",
                                              "AccountChanged",
                                              "aggregate_type",
                                              "account",
                                              "aggregate_id",
                                              key,
                                              "version",
                                              version,
                                              "schema_version",
                                              "1",
                                              "occurred_at",
                                              time,
                                              "content_type",
                                              "application/json",
                                              "ordering_key",
                                              key,
                                              "payload",
                                              payload_};
        constexpr int count = sizeof arguments / sizeof *arguments;
        const char* texts[count];
        std::size_t sizes[count];
        for (int i = 0; i < count; i++) {
            texts[i] = arguments[i].data();
            sizes[i] = arguments[i].size();
        }
        if (redisAppendCommandArgv(context_, count, texts, sizes) != REDIS_OK)
            die("append", context_->errstr);
    }

    void flush() {
        for (int done = 0; done == 0;)
            if (redisBufferWrite(context_, &done) != REDIS_OK)
                die("write", context_->errstr);
    }

    void take_answers(std::size_t count) {
        for (; count > 0; count--) {
            void* answer = nullptr;
            if (redisGetReply(context_, &answer) != REDIS_OK)
                die("read", context_->errstr);
            auto* reply = static_cast<redisReply*>(answer);
            if (reply->type == REDIS_REPLY_ERROR)
                die("XADD", reply->str);
            freeReplyObject(reply);
        }
    }

  private:
    redisContext* context_;
    std::string_view stream_, payload_;
    std::mt19937_64 random_;
};

static void load(char** arguments) {
    const std::size_t entries = std::strtoull(arguments[3], nullptr, 10);
    const std::size_t keys = std::strtoull(arguments[4], nullptr, 10);
    Loader loader(std::atoi(arguments[1]), arguments[2], arguments[5]);
    const Clock::time_point start = Clock::now();
    const double cpu = cpu_seconds();
    std::string key;
    std::size_t waiting = 0;
    for (std::size_t number = 1; number <= entries; number++) {
        key = 'a';
        key += std::to_string(number * 7919 % keys);
        loader.add(number, key);
        waiting++;
        if (number % batch == 0)
            loader.flush();
        if (waiting == max_waiting) {
            loader.take_answers(batch);
            waiting -= batch;
        }
    }
    loader.flush();
    loader.take_answers(waiting);
    std::printf("{\"entries\": %zu, \"seconds\": %.6f, \"cpu\": %.6f}\n", entries,
                std::chrono::duration<double>(Clock::now() - start).count(), cpu_seconds() - cpu);
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 6) {
        std::fputs("usage: redis_loader PORT STREAM ENTRIES KEYS PAYLOAD\n", stderr);
        return 1;
    }
    outbox::bench::load(argv);
}
