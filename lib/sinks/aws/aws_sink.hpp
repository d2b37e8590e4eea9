// The common part of the sinks of AWS: requests with up to a fixed number of entries to one queue,
// topic, stream or event bus, signed, with an answer that has a result for each entry.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cloud/aws/aws_credentials.hpp"
#include "cloud/aws/aws_service.hpp"
#include "cloud/aws/batch_answer.hpp"
#include "sinks/aws/options.hpp"
#include "sinks/aws/target_names.hpp"
#include "sinks/request_sink.hpp"

namespace outbox {

class AwsSink : public RequestSink {
  public:
    void lane_of(const Event& event, std::string& lane) const final { names_.append(lane, event); }

  protected:
    AwsSink(const AwsSinkOptions& options, const Clock& clock);

    // With the limits of the service, for any order of events.
    Capabilities usual_capabilities() const noexcept;

    const AwsService& service() const noexcept { return service_; }
    const TargetNames& names() const noexcept { return names_; }
    std::string name_of(const Exchange& exchange) const;
    // Returns "queue "orders"", the beginning of an error.
    std::string subject(const Exchange& exchange) const;

    // Returns the outcome if the name is invalid.
    std::optional<Outcome> check_name(const Exchange& exchange, const std::string& name) const;

    // The body must be in the buffer.
    void sign(Exchange& exchange, std::string_view action = {});

    // Refused for good: another attempt would fail in the same way.
    static Outcome refused(const Exchange& exchange, std::string why);
    static Outcome scoped(Outcome outcome, Scope scope);

    // Judges the whole batch by an answer other than 200, or by a missing answer.
    Outcome judge_failure(const Exchange& exchange);
    // The same for a request that only looked something up: no event is at fault.
    Outcome judge_look_up_failure(const Exchange& exchange);
    // Judges each entry by the answer to the batch, which is std::nullopt if it was malformed.
    Outcome judge_entries(const Exchange& exchange, std::optional<BatchAnswer> answer);

  private:
    EventOutcome judge_entry(const Exchange& exchange, const EntryAnswer& entry);

    const TargetNames names_;
    AwsService service_;
    const std::size_t batch_size_;
    const bool receipts_;
    AwsCredentials* credentials_;  // owned by RequestSink
};

// These initialize nothing but the sink. The module's entry point calls the one of the service.
std::unique_ptr<Sink> make_sqs_sink(const AwsSinkOptions& options, const Clock& clock);
std::unique_ptr<Sink> make_sns_sink(const AwsSinkOptions& options, const Clock& clock);
std::unique_ptr<Sink> make_kinesis_sink(const AwsSinkOptions& options, const Clock& clock);
std::unique_ptr<Sink> make_eventbridge_sink(const AwsSinkOptions& options, const Clock& clock);

}  // namespace outbox
