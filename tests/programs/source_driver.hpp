// A source by itself, for the tests: takes commands from standard input, a line each with fields
// separated by tabs, and answers each with a line of JSON.
//
//   open, close LIMIT, seek MICROSECONDS      {} when it worked
//   receive MOST WAIT                         an array of deliveries
//   ack NUMBERS, nack NUMBERS                 of deliveries, which are numbered as they came: 0,1,2
//
// A SourceError is answered with {"error": ..., "transient": ...}; what the source logs goes to
// standard error.
#pragma once

#include <json/json.h>

#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "inbox/error.hpp"
#include "inbox/source.hpp"

namespace driver {

using std::chrono::milliseconds;

inline Json::Value json_of(const inbox::Delivery& delivery, std::size_t number) {
    const inbox::Event& event = delivery.event;
    Json::Value json, headers(Json::objectValue);
    for (const auto& [name, value] : event.headers)
        headers[name] = value;
    json["number"] = Json::UInt64(number);
    json["source"] = delivery.source;
    json["message_id"] = delivery.message_id;
    json["published_at"] = Json::Int64(delivery.published_at.time_since_epoch().count());
    json["size"] = Json::UInt64(delivery.size);
    json["event_id"] = event.id;
    json["topic"] = event.topic;
    json["type"] = event.type;
    json["aggregate_type"] = event.aggregate_type;
    json["aggregate_id"] = event.aggregate_id;
    json["version"] = event.version ? Json::Value(Json::Int64(*event.version)) : Json::Value();
    json["key"] = event.ordering_key;
    json["content_type"] = event.content_type;
    json["headers"] = headers;
    json["payload"] = event.payload ? Json::Value(*event.payload) : Json::Value();
    return json;
}

class Driver {
  public:
    explicit Driver(inbox::Source& source) : source_(source) {
        source_.set_log([](inbox::Level level, const std::string& message) {
            static constexpr const char* levels[] = {"debug: ", "info: ", "warning: ", "error: "};
            std::cerr << levels[static_cast<int>(level)] + message + '\n';
        });
    }
    virtual ~Driver() = default;

    void run() {
        Json::StreamWriterBuilder one_line;
        one_line["indentation"] = "";
        for (std::string line; std::getline(std::cin, line);)
            std::cout << Json::writeString(one_line, answer(line)) << std::endl;
    }

  protected:
    // What only one kind of source can do goes before this.
    virtual Json::Value execute(const std::vector<std::string>& f) {
        if (f[0] == "open")
            source_.open();
        else if (f[0] == "receive")
            return receive(std::stoul(f.at(1)), milliseconds(std::stoll(f.at(2))));
        else if (f[0] == "ack")
            source_.ack(deliveries(f.at(1)));
        else if (f[0] == "nack")
            source_.nack(deliveries(f.at(1)));
        else if (f[0] == "seek")
            source_.seek(inbox::Time(std::chrono::microseconds(std::stoll(f.at(1)))));
        else if (f[0] == "close")
            source_.close(milliseconds(std::stoll(f.at(1))));
        else
            throw inbox::SourceError("no such command: " + f[0], false);
        return Json::Value(Json::objectValue);
    }

    Json::Value receive(std::size_t most, milliseconds wait) {
        Json::Value answer(Json::arrayValue);
        for (inbox::Delivery& delivery : source_.receive(most, wait)) {
            answer.append(json_of(delivery, received_.size()));
            received_.push_back(std::move(delivery));
        }
        return answer;
    }

    const std::vector<inbox::Delivery>& received() const { return received_; }

  private:
    Json::Value answer(const std::string& line) {
        try {
            return execute(split(line, '\t'));
        } catch (const inbox::SourceError& error) {
            Json::Value json;
            json["error"] = error.what();
            json["transient"] = error.transient();
            return json;
        }
    }

    static std::vector<std::string> split(const std::string& text, char at) {
        std::vector<std::string> parts;
        std::istringstream in(text);
        for (std::string part; std::getline(in, part, at);)
            parts.push_back(part);
        return parts;
    }

    std::vector<inbox::Delivery> deliveries(const std::string& numbers) const {
        std::vector<inbox::Delivery> chosen;
        for (const std::string& number : split(numbers, ','))
            chosen.push_back(received_.at(std::stoul(number)));
        return chosen;
    }

    inbox::Source& source_;
    std::vector<inbox::Delivery> received_;
};

}  // namespace driver
