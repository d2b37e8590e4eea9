#include "sinks/kafka/verdict.hpp"

#include "core/text.hpp"

namespace outbox {

Verdict verdict_on(rd_kafka_resp_err_t error) noexcept {
    switch (error) {
        case RD_KAFKA_RESP_ERR_NO_ERROR:
            return {Fate::confirmed};

        case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
        case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
        case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
        case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
        // A broker of the partition is down, moves, or has no disk. The library has tried again.
        case RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE:
        case RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION:
        case RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE:
        case RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE:
        case RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS:
        case RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND:
        case RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR:
            return {Fate::unavailable, Scope::lane};

        case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
        case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
            return {Fate::refused, Scope::destination, true};
        case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:  // a header names it; it may exist later
        case RD_KAFKA_RESP_ERR_INVALID_MSG:
        case RD_KAFKA_RESP_ERR_INVALID_RECORD:
        case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
        case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
        case RD_KAFKA_RESP_ERR__VALUE_SERIALIZATION:  // its schema is not known
        case RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT:
            return {Fate::refused};

        case RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED:
            return {Fate::throttled, Scope::lane};

        case RD_KAFKA_RESP_ERR__AUTHENTICATION:
        case RD_KAFKA_RESP_ERR__SSL:
        case RD_KAFKA_RESP_ERR__QUEUE_FULL:
        case RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE:
        case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
        case RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE:
        case RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION:
            return {Fate::unavailable};

        default:
            return is_given_up(error) ? Verdict{Fate::undone} : Verdict{Fate::failed};
    }
}

bool is_given_up(rd_kafka_resp_err_t error) noexcept {
    return error == RD_KAFKA_RESP_ERR__DESTROY || is_dropped(error);
}

bool is_dropped(rd_kafka_resp_err_t error) noexcept {
    return error == RD_KAFKA_RESP_ERR__PURGE_QUEUE || error == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT ||
           error == RD_KAFKA_RESP_ERR__FATAL || error == RD_KAFKA_RESP_ERR__GAPLESS_GUARANTEE;
}

bool is_of_record(rd_kafka_resp_err_t error) noexcept {
    switch (error) {
        case RD_KAFKA_RESP_ERR_NO_ERROR:
        case RD_KAFKA_RESP_ERR__FENCED:
        case RD_KAFKA_RESP_ERR__STATE:
        case RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH:
        case RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING:
        case RD_KAFKA_RESP_ERR_INVALID_TXN_STATE:
        case RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER:
        case RD_KAFKA_RESP_ERR_PRODUCER_FENCED:
        case RD_KAFKA_RESP_ERR_TRANSACTION_COORDINATOR_FENCED:
        case RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID:
            return false;
        default:
            return !is_given_up(error);
    }
}

std::string explain(rd_kafka_resp_err_t error, std::string_view topic) {
    return "topic \"" + std::string(topic) + "\": " + printable(rd_kafka_err2str(error));
}

}  // namespace outbox
