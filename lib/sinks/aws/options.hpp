// Options of Amazon SQS, SNS and Kinesis destinations.
#pragma once

#include <string>

#include "cloud/aws/aws_options.hpp"
#include "core/destination.hpp"
#include "net/transport_options.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

struct AwsSinkOptions {
    AwsKind kind = AwsKind::sqs;
    std::string source;   // the database that events come from
    TextTemplate target{};  // name of the queue, topic or stream
    bool receipts = false;
    EventFormat format = EventFormat::attributes;
    std::size_t batch_size = 0;
    std::size_t largest_record = 0;  // bytes; Kinesis only
    TransportOptions transport;
    AwsOptions aws;
};

AwsSinkOptions aws_sink_options(const Destination& destination);

extern const SinkDeclaration sqs_declaration;
extern const SinkDeclaration sns_declaration;
extern const SinkDeclaration kinesis_declaration;

}  // namespace outbox
