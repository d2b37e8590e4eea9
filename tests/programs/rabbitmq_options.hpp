// inbox::RabbitmqOptions from texts, by name.
#pragma once

#include "inbox/sources/rabbitmq.hpp"
#include "option_values.hpp"

namespace driver {

inline inbox::RabbitmqOptions rabbitmq_options(Options& options) {
    inbox::RabbitmqOptions o;
    options.take("server", o.server);
    options.take("virtual_host", o.virtual_host);
    options.take("queue", o.queue);
    options.take("is_stream", o.is_stream);
    options.take("on_recreated", o.on_recreated);
    options.take("counted_ids_are_unique", o.counted_ids_are_unique);
    std::string start;
    options.take("start", start);
    if (start == "latest")
        o.start = inbox::RabbitmqOptions::Start::latest;
    options.take("user", o.user);
    options.take("password", o.password);
    options.take("tls", o.tls);
    options.take("ca_file", o.ca_file);
    options.take("certificate", o.certificate);
    options.take("private_key", o.private_key);
    options.take("prefetch", o.prefetch);
    options.take("max_message_size", o.max_message_size);
    options.take("connect_timeout", o.connect_timeout);
    options.take("request_timeout", o.request_timeout);
    options.take("retry_base", o.retry_base);
    options.take("retry_max", o.retry_max);
    return o;
}

}  // namespace driver
