// What a status of gRPC means here.
#pragma once

#include <map>
#include <string>

#include <grpcpp/support/status.h>

namespace inbox::pubsub {

// 'NOT_FOUND: Resource not found (resource=billing)'
std::string describe(const grpc::Status& status);

// No waiting mends it: the subscription cannot be used.
bool is_fatal(const grpc::Status& status);

// The same request may work later.
bool is_transient(const grpc::Status& status);

// What became of single ack ids, where delivery is exactly once: a reason each, such as
// PERMANENT_FAILURE_INVALID_ACK_ID. Those that are not mentioned are done.
std::map<std::string, std::string> failed_ack_ids(const grpc::Status& status);

bool is_transient_reason(const std::string& reason);

}  // namespace inbox::pubsub
