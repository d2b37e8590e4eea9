// Interpretation of gRPC statuses.
#include "pubsub/answer.hpp"

#include <gmock/gmock.h>

#include "pubsub.pb.h"

namespace inbox::pubsub {
namespace {

using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

grpc::Status with_details(const std::map<std::string, std::string>& metadata,
                          const std::string& type = "type.googleapis.com/google.rpc.ErrorInfo") {
    ErrorInfo info;
    info.mutable_metadata()->insert(metadata.begin(), metadata.end());
    Status status;
    status.add_details()->set_type_url("type.googleapis.com/google.rpc.Help");
    Any& detail = *status.add_details();
    detail.set_type_url(type);
    detail.set_value(info.SerializeAsString());
    return {grpc::StatusCode::FAILED_PRECONDITION, "some", status.SerializeAsString()};
}

TEST(Answer, IsDescribed) {
    EXPECT_EQ(describe({grpc::StatusCode::NOT_FOUND, "no such thing"}), "NOT_FOUND: no such thing");
    EXPECT_EQ(describe({grpc::StatusCode::UNAUTHENTICATED, ""}), "UNAUTHENTICATED");
    EXPECT_EQ(describe(grpc::Status::OK), "OK");
}

TEST(Answer, IsFatalOrTransientOrNeither) {
    for (int code = 0; code <= grpc::StatusCode::UNAUTHENTICATED; code++) {
        const grpc::Status status(static_cast<grpc::StatusCode>(code), "");
        EXPECT_FALSE(is_fatal(status) && is_transient(status)) << describe(status);
    }
    EXPECT_FALSE(is_fatal(grpc::Status::OK));
    EXPECT_FALSE(is_transient(grpc::Status::OK));
    EXPECT_FALSE(is_transient({grpc::StatusCode::DATA_LOSS, ""}));
}

TEST(Answer, HasTheReasonOfEachFailedAckId) {
    const auto failed = failed_ack_ids(with_details({{"a", "PERMANENT_FAILURE_INVALID_ACK_ID"},
                                                     {"b", "TRANSIENT_FAILURE_UNORDERED_ACK_ID"},
                                                     {"quota_limit", "17"}}));
    EXPECT_THAT(failed, UnorderedElementsAre(Pair("a", "PERMANENT_FAILURE_INVALID_ACK_ID"),
                                             Pair("b", "TRANSIENT_FAILURE_UNORDERED_ACK_ID")));
    EXPECT_TRUE(is_transient_reason(failed.at("b")));
    EXPECT_FALSE(is_transient_reason(failed.at("a")));
}

TEST(Answer, MayHaveNoReasons) {
    EXPECT_THAT(failed_ack_ids(grpc::Status::OK), IsEmpty());
    EXPECT_THAT(failed_ack_ids({grpc::StatusCode::UNAVAILABLE, "x"}), IsEmpty());
    EXPECT_THAT(failed_ack_ids({grpc::StatusCode::UNAVAILABLE, "x", "\xff\xff no message"}),
                IsEmpty());
    EXPECT_THAT(failed_ack_ids(with_details({{"a", "PERMANENT_FAILURE_X"}}, "of/another.Type")),
                IsEmpty());
}

}  // namespace
}  // namespace inbox::pubsub
