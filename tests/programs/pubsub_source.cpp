// The Pub/Sub source by itself, for the tests: pubsub_source OPTION=VALUE ...
//
// Options: those of inbox::PubSubOptions by name, times in milliseconds.
//
// Reads commands from its input, a line each with fields separated by tabs, and answers each with a
// line of JSON: see command(). Deliveries are called by number, in the order in which they came.
// What the source logs goes to standard error.
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <json/json.h>

#include "inbox/sources/pubsub.hpp"

namespace {

using std::chrono::milliseconds;
using Options = std::map<std::string, std::string>;

std::string taken(Options& options, const std::string& name, const std::string& otherwise) {
    const auto found = options.extract(name);
    return found ? found.mapped() : otherwise;
}

inbox::PubSubOptions source_options(Options& options) {
    inbox::PubSubOptions o;
    const auto number = [&](const char* name, std::size_t& value) {
        value = std::stoull(taken(options, name, std::to_string(value)));
    };
    const auto seconds = [&](const char* name, std::chrono::seconds& value) {
        value =
            std::chrono::seconds(std::stoll(taken(options, name, std::to_string(value.count()))));
    };
    o.project = taken(options, "project", "");
    o.subscription = taken(options, "subscription", "");
    o.topic = taken(options, "topic", "");
    o.endpoint = taken(options, "endpoint", o.endpoint);
    o.emulator_host = taken(options, "emulator_host", "");
    o.key_file = taken(options, "key_file", "");
    o.ca_file = taken(options, "ca_file", "");
    o.client_id = taken(options, "client_id", "");
    number("max_outstanding_messages", o.max_outstanding_messages);
    number("max_outstanding_bytes", o.max_outstanding_bytes);
    seconds("min_ack_deadline", o.min_ack_deadline);
    seconds("max_ack_deadline", o.max_ack_deadline);
    seconds("max_lease", o.max_lease);
    o.heartbeat =
        milliseconds(std::stoll(taken(options, "heartbeat", std::to_string(o.heartbeat.count()))));
    return o;
}

class Driver {
  public:
    explicit Driver(inbox::PubSubOptions options) : source_(std::move(options)) {
        source_.set_log([](inbox::Level level, const std::string& message) {
            static constexpr const char* levels[] = {"debug", "info", "warning", "error"};
            std::cerr << levels[static_cast<int>(level)] + (": " + message) + "\n";
        });
    }

    Json::Value command(const std::string& line) {
        const std::vector<std::string> f = fields_of(line);
        try {
            return run(f);
        } catch (const inbox::SourceError& error) {
            Json::Value answer;
            answer["error"] = error.what();
            answer["transient"] = error.transient();
            return answer;
        }
    }

  private:
    Json::Value run(const std::vector<std::string>& f) {
        if (f[0] == "open")
            source_.open();
        else if (f[0] == "receive")
            return receive(std::stoul(f[1]), milliseconds(std::stoll(f[2])));
        else if (f[0] == "close_during_receive")
            return close_during_receive(milliseconds(std::stoll(f[1])));
        else if (f[0] == "ack")
            source_.ack(deliveries(f[1]));
        else if (f[0] == "nack")
            source_.nack(deliveries(f[1]));
        else if (f[0] == "seek")
            source_.seek(inbox::Time(std::chrono::microseconds(std::stoll(f[1]))));
        else if (f[0] == "create_snapshot")
            source_.create_snapshot(f[1]);
        else if (f[0] == "seek_to_snapshot")
            source_.seek_to_snapshot(f[1]);
        else if (f[0] == "close")
            source_.close(milliseconds(std::stoll(f[1])));
        else if (f[0] != "stats")
            throw inbox::SourceError("no such command: " + f[0], false);
        return stats();
    }

    Json::Value receive(std::size_t max_messages, milliseconds wait) {
        Json::Value answer(Json::arrayValue);
        for (inbox::Delivery& delivery : source_.receive(max_messages, wait)) {
            Json::Value message;
            message["number"] = Json::UInt64(received_.size());
            message["message_id"] = delivery.message_id;
            message["source"] = delivery.source;
            message["published_at"] = Json::Int64(delivery.published_at.time_since_epoch().count());
            message["size"] = Json::UInt64(delivery.size);
            message["event_id"] = delivery.event.id;
            message["topic"] = delivery.event.topic;
            message["type"] = delivery.event.type;
            message["key"] = delivery.event.ordering_key;
            message["payload"] = delivery.event.payload.value_or("");
            answer.append(std::move(message));
            received_.push_back(std::move(delivery));
        }
        return answer;
    }

    Json::Value close_during_receive(milliseconds wait) {
        std::thread closer([&] {
            std::this_thread::sleep_for(milliseconds(200));  // by then it waits
            source_.close(milliseconds(0));
        });
        Json::Value answer = receive(1, wait);
        closer.join();
        return answer;
    }

    Json::Value stats() const {
        const inbox::PubSubStats stats = source_.stats();
        Json::Value answer;
        answer["streams"] = Json::UInt64(stats.streams);
        answer["received"] = Json::UInt64(stats.received);
        answer["acked"] = Json::UInt64(stats.acked);
        answer["nacked"] = Json::UInt64(stats.nacked);
        answer["extended"] = Json::UInt64(stats.extended);
        answer["overtaken"] = Json::UInt64(stats.overtaken);
        answer["expired"] = Json::UInt64(stats.expired);
        answer["refused"] = Json::UInt64(stats.refused);
        answer["lost_acks"] = Json::UInt64(stats.lost_acks);
        answer["leased"] = Json::UInt64(stats.leased);
        answer["waiting"] = Json::UInt64(stats.waiting);
        return answer;
    }

    static std::vector<std::string> fields_of(const std::string& line) {
        std::vector<std::string> fields;
        std::istringstream in(line);
        for (std::string field; std::getline(in, field, '\t');)
            fields.push_back(field);
        fields.resize(3);
        return fields;
    }

    std::vector<inbox::Delivery> deliveries(const std::string& numbers) const {
        std::vector<inbox::Delivery> chosen;
        std::istringstream in(numbers);
        for (std::string number; std::getline(in, number, ',');)
            chosen.push_back(received_.at(std::stoul(number)));
        return chosen;
    }

    inbox::PubSubSource source_;
    std::vector<inbox::Delivery> received_;
};

}  // namespace

int main(int count, char** arguments) {
    Options options;
    for (int i = 1; i < count; i++) {
        const std::string option = arguments[i];
        options[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
    }
    Driver driver(source_options(options));
    for (const auto& [name, value] : options) {
        std::cerr << "unknown option " << name << "=" << value << '\n';
        return 2;
    }
    Json::StreamWriterBuilder one_line;
    one_line["indentation"] = "";
    for (std::string line; std::getline(std::cin, line);)
        std::cout << Json::writeString(one_line, driver.command(line)) << std::endl;
}
