// Interprets gRPC statuses of Pub/Sub.
#pragma once

#include <map>
#include <string>

#include <grpcpp/support/status.h>

namespace inbox::pubsub {

// Returns 'NOT_FOUND: Resource not found (resource=billing)'.
std::string describe(const grpc::Status& status);

// True if waiting cannot help: the subscription cannot be used.
bool is_fatal(const grpc::Status& status);

// True if the same request may succeed later.
bool is_transient(const grpc::Status& status);

// The reasons why single ack ids failed, such as PERMANENT_FAILURE_INVALID_ACK_ID. They are given
// only with exactly-once delivery. Ack ids that are not in the result succeeded.
std::map<std::string, std::string> failed_ack_ids(const grpc::Status& status);

bool is_transient_reason(const std::string& reason);

}  // namespace inbox::pubsub
