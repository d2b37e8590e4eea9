// inbox::SqsOptions from texts, by name.
#pragma once

#include "inbox/sources/sqs.hpp"
#include "option_values.hpp"

namespace driver {

inline inbox::SqsOptions sqs_options(Options& options) {
    inbox::SqsOptions o;
    options.take("queue", o.queue);
    options.take("region", o.region);
    options.take("account", o.account);
    options.take("endpoint", o.endpoint);
    options.take("access_key_id", o.access_key_id);
    options.take("secret_access_key", o.secret_access_key);
    options.take("session_token", o.session_token);
    options.take("profile", o.profile);
    options.take("pollers", o.pollers);
    options.take("visibility", o.visibility);
    options.take("poll", o.poll);
    options.take("ca_file", o.ca_file);
    options.take("connect_timeout", o.connect_timeout);
    options.take("request_timeout", o.request_timeout);
    options.take("retry_base", o.retry_base);
    options.take("retry_max", o.retry_max);
    return o;
}

}  // namespace driver
