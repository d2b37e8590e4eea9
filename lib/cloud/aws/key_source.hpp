// Sources of keys over the network. Each source sends a few requests to one server, one after the
// other. The environment of the server process, or the platform, says which server.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cloud/aws/sigv4.hpp"
#include "core/clock.hpp"
#include "core/result.hpp"
#include "net/exchange.hpp"

namespace outbox {

// Returns the value of a variable, or an empty string if it is not set.
using Environment = std::function<std::string(const char* name)>;

struct KeySource {
    std::string name;  // for errors
    std::string url;
    Micros timeout;  // of the connection, and of each request
    // Reads the answer to the request before. Makes request number `exchange.step`, counted from 0,
    // and returns std::nullopt; or returns the keys.
    std::function<Result<std::optional<AwsKeys>>(Exchange& exchange)> next;
};

// Each of these returns std::nullopt if the environment does not configure it.

// A token in a file, as in Kubernetes. STS exchanges it for keys.
std::optional<Result<KeySource>> web_identity_source(const Environment& environment,
                                                     const std::string& region, Micros timeout);
// The agent beside a container, of ECS or EKS.
std::optional<Result<KeySource>> container_source(const Environment& environment);
// The metadata service of EC2, version 2.
std::optional<Result<KeySource>> instance_source(const Environment& environment);

// Parses "2026-01-31T10:20:30Z" to microseconds since the Unix epoch, or returns std::nullopt.
std::optional<Micros> parse_expiration(const std::string& text);

// Returns whether a container's full URI may have this host. The token that goes there must not
// leave the machine.
bool is_container_host(const std::string& host);

}  // namespace outbox
