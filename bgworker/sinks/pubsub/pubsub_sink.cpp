// The pubsub sink: to come.
#include "sinks/sink.hpp"

extern "C" __attribute__((visibility("default"))) outbox::Sink* outbox_create_sink(
    const outbox::SinkContext&) noexcept {
    return nullptr;
}
