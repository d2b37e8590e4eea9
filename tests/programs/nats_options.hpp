// inbox::NatsOptions from texts, by name.
#pragma once

#include "inbox/sources/nats.hpp"
#include "option_values.hpp"

namespace driver {

inline inbox::NatsOptions nats_options(Options& options) {
    inbox::NatsOptions o;
    options.take("servers", o.servers);
    options.take("stream", o.stream);
    options.take("consumer", o.consumer);
    options.take("user", o.user);
    options.take("password", o.password);
    options.take("token", o.token);
    options.take("tls", o.tls);
    options.take("ca_file", o.ca_file);
    options.take("inbox_prefix", o.inbox_prefix);
    options.take("prefetch", o.prefetch);
    options.take("double_ack", o.double_ack);
    options.take("on_recreated", o.on_recreated);
    options.take("connect_timeout", o.connect_timeout);
    options.take("request_timeout", o.request_timeout);
    options.take("retry_base", o.retry_base);
    options.take("retry_max", o.retry_max);
    return o;
}

}  // namespace driver
