#include "pubsub/answer.hpp"

#include "core/text.hpp"
#include "pubsub.pb.h"

namespace inbox::pubsub {

static const char* name_of(grpc::StatusCode code) {
    static constexpr const char* names[] = {"OK",
                                            "CANCELLED",
                                            "UNKNOWN",
                                            "INVALID_ARGUMENT",
                                            "DEADLINE_EXCEEDED",
                                            "NOT_FOUND",
                                            "ALREADY_EXISTS",
                                            "PERMISSION_DENIED",
                                            "RESOURCE_EXHAUSTED",
                                            "FAILED_PRECONDITION",
                                            "ABORTED",
                                            "OUT_OF_RANGE",
                                            "UNIMPLEMENTED",
                                            "INTERNAL",
                                            "UNAVAILABLE",
                                            "DATA_LOSS",
                                            "UNAUTHENTICATED"};
    return code >= 0 && code < static_cast<int>(std::size(names)) ? names[code] : "?";
}

std::string describe(const grpc::Status& status) {
    std::string text = name_of(status.error_code());
    if (!status.error_message().empty())
        text += ": " + outbox::printable(status.error_message());
    return text;
}

bool is_fatal(const grpc::Status& status) {
    switch (status.error_code()) {
        case grpc::StatusCode::INVALID_ARGUMENT:
        case grpc::StatusCode::NOT_FOUND:
        case grpc::StatusCode::PERMISSION_DENIED:
        case grpc::StatusCode::UNAUTHENTICATED:
        case grpc::StatusCode::FAILED_PRECONDITION:
        case grpc::StatusCode::UNIMPLEMENTED:
            return true;
        default:
            return false;
    }
}

bool is_transient(const grpc::Status& status) {
    switch (status.error_code()) {
        case grpc::StatusCode::ABORTED:
        case grpc::StatusCode::CANCELLED:
        case grpc::StatusCode::DEADLINE_EXCEEDED:
        case grpc::StatusCode::INTERNAL:
        case grpc::StatusCode::RESOURCE_EXHAUSTED:
        case grpc::StatusCode::UNAVAILABLE:
        case grpc::StatusCode::UNKNOWN:
            return true;
        default:
            return false;
    }
}

std::map<std::string, std::string> failed_ack_ids(const grpc::Status& status) {
    std::map<std::string, std::string> failed;
    Status details;
    if (!details.ParseFromString(status.error_details()))
        return failed;
    for (const Any& detail : details.details()) {
        ErrorInfo info;
        if (!detail.type_url().ends_with("/google.rpc.ErrorInfo") ||
            !info.ParseFromString(detail.value()))
            continue;
        for (const auto& [ack_id, reason] : info.metadata())
            if (reason.starts_with("PERMANENT_FAILURE_") || is_transient_reason(reason))
                failed[ack_id] = reason;
    }
    return failed;
}

bool is_transient_reason(const std::string& reason) {
    return reason.starts_with("TRANSIENT_FAILURE_");
}

}  // namespace inbox::pubsub
