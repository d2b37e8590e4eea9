// The functions that the module exports. It has two sinks: the scheme of the URL selects one.
#include "net/transport.hpp"
#include "sinks/http/endpoint_options.hpp"
#include "sinks/http/http_sink.hpp"
#include "sinks/module_entry.hpp"

static bool has_endpoints(const outbox::Destination& destination) {
    return destination.url.scheme == outbox::endpoints_declaration.schemes.front();
}

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        if (!outbox::initialize_curl())
            return nullptr;
        return (has_endpoints(context.destination) ? outbox::create_endpoints_check(context)
                                                   : outbox::create_http_check(context))
            .release();
    });
}

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        if (!outbox::initialize_curl())
            return nullptr;
        return (has_endpoints(context.destination) ? outbox::create_endpoints_sink(context)
                                                   : outbox::create_http_sink(context))
            .release();
    });
}
