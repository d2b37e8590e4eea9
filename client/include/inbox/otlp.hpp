// Spans for a collector of OpenTelemetry, as OTLP/HTTP in JSON: one for each attempt to apply an event
// whose `traceparent` says that its trace is sampled.
//
//     inbox::OtlpExporter spans({.endpoint = "http://127.0.0.1:4318/v1/traces", .service = "catalog"});
//     inbox::Consumer consumer({.name = "catalog", .observer = spans.observer()},
//                              std::make_unique<inbox::PullSource>("dbname=shop", "catalog"), connect, handler);
//
// CMake: pg_inbox::otlp, which needs libcurl.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "inbox/consumer.hpp"

namespace inbox {

struct OtlpOptions {
    std::string endpoint{};              // URL, http or https; not empty
    std::string service = "pg_inbox";    // the attribute service.name
    std::vector<std::string> headers{};  // of each request: "Authorization: Bearer 5f3a"
    // Longest time for a request, and for the last one in the destructor. More than 0.
    std::chrono::milliseconds timeout{5000};
};

// A thread sends the collected spans once a second. The consumer never waits for it: at most 512 kB
// of spans are kept. Spans without room, and those of a request that fails, are lost and counted.
class OtlpExporter {
  public:
    // Throws std::invalid_argument for an option out of range, and std::system_error if no
    // thread can be started.
    explicit OtlpExporter(OtlpOptions options);
    // Sends what is left.
    ~OtlpExporter();
    OtlpExporter(const OtlpExporter&) = delete;
    OtlpExporter& operator=(const OtlpExporter&) = delete;

    // For any number of consumers, which must end before the exporter.
    Observer observer();

    // Spans that did not reach the collector, so far. Any thread may ask.
    std::uint64_t lost() const;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
