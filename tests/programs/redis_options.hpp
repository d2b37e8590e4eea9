// inbox::RedisOptions from texts, by name; streams with commas.
#pragma once

#include <sstream>

#include "inbox/sources/redis.hpp"
#include "option_values.hpp"

namespace driver {

inline inbox::RedisOptions redis_options(Options& options) {
    inbox::RedisOptions o;
    std::string streams;
    options.take("servers", o.servers);
    options.take("sentinel", o.sentinel);
    options.take("database", o.database);
    options.take("streams", streams);
    options.take("group", o.group);
    options.take("consumer", o.consumer);
    options.take("create_group_from", o.create_group_from);
    options.take("on_recreated", o.on_recreated);
    options.take("user", o.user);
    options.take("password", o.password);
    options.take("sentinel_password", o.sentinel_password);
    options.take("tls", o.tls);
    options.take("ca_file", o.ca_file);
    options.take("certificate", o.certificate);
    options.take("private_key", o.private_key);
    options.take("prefetch", o.prefetch);
    options.take("min_idle", o.min_idle);
    options.take("connect_timeout", o.connect_timeout);
    options.take("request_timeout", o.request_timeout);
    options.take("retry_base", o.retry_base);
    options.take("retry_max", o.retry_max);
    std::istringstream in(streams);
    for (std::string stream; std::getline(in, stream, ',');)
        o.streams.push_back(stream);
    return o;
}

}  // namespace driver
