#include "sinks/kafka/verdict.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

struct Case {
    rd_kafka_resp_err_t error;
    Fate fate;
    Scope scope = Scope::destination;
};

// An answer about the broker's own memory, disk, replicas or quotas is not the event's fault.
TEST(KafkaVerdict, TellsAnOutageFromARefusal) {
    constexpr Case cases[] = {
        {RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, Fate::unavailable, Scope::lane},
        {RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND, Fate::unavailable, Scope::lane},
        {RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR, Fate::unavailable, Scope::lane},
        {RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, Fate::unavailable, Scope::lane},
        {RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, Fate::unavailable, Scope::lane},
        {RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE, Fate::unavailable, Scope::lane},
        {RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE, Fate::unavailable, Scope::lane},
        {RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, Fate::unavailable, Scope::lane},
        {RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, Fate::unavailable, Scope::lane},
        {RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED, Fate::throttled, Scope::lane},
        {RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, Fate::unavailable},
        {RD_KAFKA_RESP_ERR__AUTHENTICATION, Fate::unavailable},
        // These are about the record.
        {RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, Fate::refused},
        {RD_KAFKA_RESP_ERR_INVALID_RECORD, Fate::refused},
        {RD_KAFKA_RESP_ERR_POLICY_VIOLATION, Fate::refused},
        // Nobody knows.
        {RD_KAFKA_RESP_ERR__MSG_TIMED_OUT, Fate::failed},
        {RD_KAFKA_RESP_ERR_UNKNOWN, Fate::failed},
    };
    for (const Case& expected : cases) {
        const Verdict verdict = verdict_on(expected.error);
        EXPECT_EQ(verdict.fate, expected.fate) << rd_kafka_err2name(expected.error);
        EXPECT_EQ(verdict.scope, expected.scope) << rd_kafka_err2name(expected.error);
    }
}

}  // namespace
}  // namespace outbox
