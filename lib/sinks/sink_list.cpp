// The list of all sinks. Outside of the folder of a sink, only this file names it.
#include "sinks/aws/options.hpp"
#include "sinks/http/endpoint_options.hpp"
#include "sinks/http/options.hpp"
#include "sinks/kafka/options.hpp"
#include "sinks/mqtt/options.hpp"
#include "sinks/nats/options.hpp"
#include "sinks/null/options.hpp"
#include "sinks/postgresql/options.hpp"
#include "sinks/pubsub/options.hpp"
#include "sinks/pull/options.hpp"
#include "sinks/rabbitmq/options.hpp"
#include "sinks/redis/options.hpp"
#include "sinks/registry.hpp"

namespace outbox {

std::span<const SinkDeclaration* const> all_sinks() noexcept {
    static constexpr const SinkDeclaration* sinks[] = {
        &null_declaration,        &http_declaration, &postgresql_declaration, &kafka_declaration,
        &rabbitmq_declaration,    &nats_declaration, &redis_declaration,      &mqtt_declaration,
        &pubsub_declaration,      &sqs_declaration,  &sns_declaration,        &kinesis_declaration,
        &eventbridge_declaration, &pull_declaration, &endpoints_declaration};
    return sinks;
}

}  // namespace outbox
