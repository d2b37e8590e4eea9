// The kinesis sink. A batch is one request of up to 500 records to one stream. Records may be taken
// in part, so a batch has one event of an ordering key, and the next one goes when it is confirmed:
// a later record of a key never comes before an earlier one.
#include <algorithm>

#include "cloud/aws/json_protocol.hpp"
#include "sinks/aws/aws_sink.hpp"
#include "sinks/aws/kinesis_record.hpp"
#include "sinks/cloudevents.hpp"

namespace outbox {

namespace {

// Limit for all records of a request. The service accepts twice as much, but it would all be
// repeated when a batch is sent again, and a shard takes a megabyte a second.
constexpr std::size_t usual_batch_bytes = 5 * 1024 * 1024;

class KinesisSink final : public AwsSink {
  public:
    KinesisSink(const AwsSinkOptions& options, const Clock& clock)
        : AwsSink(options, clock),
          style_{options.format, source_prefix(options.source)},
          max_record_(options.max_record) {}

    Capabilities capabilities() const noexcept override {
        Capabilities capabilities = usual_capabilities();
        capabilities.max_batch_bytes = std::max(usual_batch_bytes, max_record_);
        capabilities.keys = KeyPolicy::one_each;
        return capabilities;
    }

    std::size_t size_of(const Event& event) const noexcept override {
        return record_size_bound(event, style_);
    }

  private:
    std::optional<Outcome> encode(Exchange& exchange) override {
        const std::string name = name_of(exchange);
        if (std::optional<Outcome> outcome = check_name(exchange, name))
            return outcome;
        std::string& body = exchange.content.buffer;
        body.clear();
        begin_records(body, service().address_of(name));
        for (const Event* event : exchange.batch->events) {
            record_.assign(*event, style_);
            if (record_.size() > max_record_)
                return refused(exchange, "the record has " + std::to_string(record_.size()) +
                                             " bytes, more than the " +
                                             std::to_string(max_record_) +
                                             " of the option max_record_size");
            add_record(body, record_);
        }
        end_records(body);
        sign(exchange, "PutRecords");
        return std::nullopt;
    }

    Outcome judge(const Exchange& exchange) override {
        if (exchange.status != 200)
            return judge_failure(exchange);
        return judge_entries(exchange, parse_ordered_answer(exchange.body, kinesis_results,
                                                            exchange.batch->events.size()));
    }

    const RecordStyle style_;
    const std::size_t max_record_;
    KinesisRecord record_;  // scratch space
};

}  // namespace

std::unique_ptr<Sink> make_kinesis_sink(const AwsSinkOptions& options, const Clock& clock) {
    return std::make_unique<KinesisSink>(options, clock);
}

}  // namespace outbox
