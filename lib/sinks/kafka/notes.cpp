#include "sinks/kafka/notes.hpp"

#include <atomic>
#include <cstring>
#include <mutex>

#include "core/delivery_stats.hpp"
#include "core/text.hpp"

namespace outbox {

namespace {

constexpr std::size_t max_lines = 10;  // kept until the next report
constexpr std::size_t max_line = 500;

struct Notes {
    std::mutex mutex;  // for the members that are not atomic
    LatencyHistogram round_trips;
    std::vector<std::string> lines;
    std::atomic<std::uint64_t> connects = 0;
    std::atomic<std::uint64_t> disconnects = 0;
};

// Never destroyed: threads of the library may outlive the end of main().
Notes& notes() {
    static Notes& all = *new Notes;
    return all;
}

void note_line(const rd_kafka_t*, int, const char* about, const char* text) noexcept {
    if (std::strcmp(about, "CONFWARN") == 0)  // warnings about settings that we want
        return;
    try {
        const std::lock_guard lock(notes().mutex);
        if (notes().lines.size() < max_lines)
            notes().lines.push_back(printable(text, max_line));
    } catch (...) {  // no memory for the line
    }
}

rd_kafka_resp_err_t note_answer(rd_kafka_t*, int, const char*, std::int32_t, std::int16_t key,
                                std::int16_t, std::int32_t, std::size_t, std::int64_t round_trip,
                                rd_kafka_resp_err_t, void*) noexcept {
    constexpr std::int16_t produce = 0;
    if (key == produce && round_trip >= 0) {
        const std::lock_guard lock(notes().mutex);
        notes().round_trips.add(round_trip, SystemClock().now());
    }
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

thread_local bool is_up = false;  // each broker has a thread

rd_kafka_resp_err_t note_state(rd_kafka_t*, std::int32_t, const char*, const char*, int,
                               const char* state, void*) noexcept {
    const bool was_up = std::exchange(is_up, std::strcmp(state, "UP") == 0);
    notes().connects += is_up && !was_up;
    notes().disconnects += was_up && !is_up;
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

rd_kafka_resp_err_t listen(rd_kafka_t* handle, const rd_kafka_conf_t*, void*, char*,
                           std::size_t) noexcept {
    rd_kafka_interceptor_add_on_response_received(handle, "notes", note_answer, nullptr);
    return rd_kafka_interceptor_add_on_broker_state_change(handle, "notes", note_state, nullptr);
}

}  // namespace

void take_notes_of(rd_kafka_conf_t* conf) {
    constexpr const char* warnings = "4";
    rd_kafka_conf_set(conf, "log_level", warnings, nullptr, 0);
    rd_kafka_conf_set_log_cb(conf, note_line);
    rd_kafka_conf_interceptor_add_on_new(conf, "notes", listen, nullptr);
}

void report_notes(std::size_t queued, SinkReport& report) {
    Notes& all = notes();
    const std::lock_guard lock(all.mutex);
    report.round_trip_p50 = all.round_trips.percentile(0.50).value_or(-1);
    report.round_trip_p99 = all.round_trips.percentile(0.99).value_or(-1);
    report.queued = queued;
    report.connects = all.connects;
    report.disconnects = all.disconnects;
    report.lines = std::exchange(all.lines, {});
}

}  // namespace outbox
