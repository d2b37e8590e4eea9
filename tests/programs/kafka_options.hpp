// inbox::KafkaOptions from texts, by name. Names with a dot are properties of librdkafka.
#pragma once

#include <chrono>
#include <map>
#include <sstream>
#include <string>

#include "inbox/sources/kafka.hpp"

namespace driver {

inline inbox::KafkaOptions kafka_options(std::map<std::string, std::string>& given) {
    const auto taken = [&](const std::string& name, const std::string& otherwise = "") {
        const auto found = given.extract(name);
        return found ? found.mapped() : otherwise;
    };
    const auto time = [&](const char* name, std::chrono::milliseconds& value) {
        value = std::chrono::milliseconds(std::stoll(taken(name, std::to_string(value.count()))));
    };
    inbox::KafkaOptions o;
    o.brokers = taken("brokers");
    o.group = taken("group");
    std::istringstream topics(taken("topics"));
    for (std::string topic; std::getline(topics, topic, ',');)
        o.topics.push_back(topic);
    o.offsets_in_database = taken("offsets_in_database", "0") == "1";
    if (taken("start", "earliest") == "latest")
        o.start = inbox::KafkaOptions::Start::latest;
    if (taken("on_recreated") == "stop")
        o.on_recreated = inbox::OnRecreated::stop;
    o.tls = taken("tls", "0") == "1";
    o.ca_file = taken("ca_file");
    o.certificate_file = taken("certificate_file");
    o.private_key_file = taken("private_key_file");
    o.sasl_mechanism = taken("sasl_mechanism");
    o.user = taken("user");
    o.password = taken("password");
    o.instance_id = taken("instance_id");
    time("session_timeout", o.session_timeout);
    time("commit_interval", o.commit_interval);
    time("revoke_limit", o.revoke_limit);
    o.prefetch_bytes = std::stoull(taken("prefetch_bytes", std::to_string(o.prefetch_bytes)));
    for (auto at = given.begin(); at != given.end();) {
        if (at->first.find('.') == std::string::npos) {
            ++at;
            continue;
        }
        o.properties.insert(*at);
        at = given.erase(at);
    }
    return o;
}

}  // namespace driver
