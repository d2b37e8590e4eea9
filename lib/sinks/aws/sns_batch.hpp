// Writes the request PublishBatch of SNS.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "sinks/aws/aws_message.hpp"

namespace outbox {

// Call begin_sns_batch() first, then add_sns_entry() for each entry.
void begin_sns_batch(std::string& body, std::string_view topic_arn);
void add_sns_entry(std::string& body, std::size_t index, const AwsMessage& message);

}  // namespace outbox
