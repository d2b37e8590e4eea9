// Options of Amazon SQS, SNS, Kinesis and EventBridge destinations.
#pragma once

#include <string>

#include "cloud/aws/aws_options.hpp"
#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct AwsSinkOptions {
    AwsKind kind = AwsKind::sqs;
    std::string source;     // the database that events come from
    TextTemplate target{};  // name of the queue, topic, stream or event bus
    bool receipts = false;
    EventFormat format = EventFormat::attributes;
    std::size_t batch_size = 0;
    std::size_t max_record = 0;  // bytes; Kinesis only
    // EventBridge only.
    TextTemplate event_source{};
    std::size_t event_source_text = 0;  // length of that option
    bool verify_bus = true;
    TransportOptions transport;
    AwsOptions aws;
};

AwsSinkOptions aws_sink_options(const Destination& destination);

extern const SinkDeclaration sqs_declaration;
extern const SinkDeclaration sns_declaration;
extern const SinkDeclaration kinesis_declaration;
extern const SinkDeclaration eventbridge_declaration;

}  // namespace outbox
