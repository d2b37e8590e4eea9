// A message of SQS as a delivery: one of pg_outbox's sinks sqs and sns, raw or in the envelope of
// SNS, or anybody's.
#pragma once

#include <string>

#include "inbox/event.hpp"
#include "sqs/protocol.hpp"

namespace inbox::sqs {

// `source`: the subscription; `queue`: its name, the topic unless the message says another. Of a
// standard queue the groups mean no order.
Delivery delivery_from(Message message, const std::string& source, const std::string& queue,
                       bool fifo);

}  // namespace inbox::sqs
