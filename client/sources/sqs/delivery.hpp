// Turns a message of SQS into a delivery. The message may come from pg_outbox's sinks sqs and sns,
// with or without the envelope of SNS, or from any other sender.
#pragma once

#include <string>

#include "inbox/event.hpp"
#include "sqs/protocol.hpp"

namespace inbox::sqs {

// `source` is the subscription. `queue` is its name, which is used as the topic unless the message
// has one. Without `fifo` the groups of messages mean no order.
Delivery delivery_from(Message message, const std::string& source, const std::string& queue,
                       bool fifo);

}  // namespace inbox::sqs
