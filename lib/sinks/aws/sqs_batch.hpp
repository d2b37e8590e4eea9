// Writes the request SendMessageBatch of SQS.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "sinks/aws/aws_message.hpp"

namespace outbox {

// Call begin_sqs_batch() first, then add_sqs_entry() for each entry.
void begin_sqs_batch(std::string& body, std::string_view queue_url);
void add_sqs_entry(std::string& body, std::size_t index, const AwsMessage& message);
void end_sqs_batch(std::string& body);

}  // namespace outbox
