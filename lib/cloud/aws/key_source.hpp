// Where keys come from over the network: each source a few requests to one server, one after the
// other. Which server that is the environment of the server process says, or the platform.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cloud/aws/sigv4.hpp"
#include "core/clock.hpp"
#include "core/result.hpp"
#include "net/exchange.hpp"

namespace outbox {

// The value of a variable; empty: it is not set.
using Environment = std::function<std::string(const char* name)>;

struct KeySource {
    std::string name;  // for errors
    std::string url;
    Micros timeout;  // of the connection, and of each request
    // Makes request `exchange.step`, counted from 0, from the answer to the one before it; or takes
    // the keys from that answer.
    std::function<Result<std::optional<AwsKeys>>(Exchange& exchange)> next;
};

// These ask the environment whether they are meant; nothing: they are not.

// A token in a file, as Kubernetes has it, that STS exchanges for keys.
std::optional<Result<KeySource>> web_identity_source(const Environment& environment,
                                                     const std::string& region, Micros timeout);
// The agent of ECS or EKS beside a container.
std::optional<Result<KeySource>> container_source(const Environment& environment);
// The metadata service of EC2, version 2.
std::optional<Result<KeySource>> instance_source(const Environment& environment);

// "2026-01-31T10:20:30Z" since the Unix epoch; nothing: it is no such time.
std::optional<Micros> parse_expiration(const std::string& text);

// May a container's full URI name this host? The token that goes there must not leave the machine.
bool is_container_host(const std::string& host);

}  // namespace outbox
