// The database's side of endpoints, in memory: what outbox_internal.ask_endpoints() does, with a log in
// which each event is a transaction of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/endpoints.hpp"
#include "core/text.hpp"
#include "core/topic_filter.hpp"
#include "net/json.hpp"

namespace outbox {

struct LoggedEvent {
    std::uint64_t xid = 0;
    std::int64_t position = 0;
    std::string topic{};
    std::string key{};
};

// Appends the event, with a payload that names it.
inline Event* append_logged(EventBlock& block, const LoggedEvent& logged) {
    const std::string payload = std::to_string(logged.position);
    Event* event = block.append(logged.topic.size() + logged.key.size() + payload.size() + 64);
    if (event == nullptr)
        return nullptr;
    const auto copy = [&](std::string_view text) { return block.copy(text.data(), text.size()); };
    event->xid = logged.xid;
    event->position = logged.position;
    event->topic = copy(logged.topic);
    event->ordering_key = copy(logged.key);
    event->aggregate_type = copy("t");
    event->aggregate_id = copy("a");
    event->event_type = copy("Thing");
    event->content_type = copy("application/json");
    event->payload = copy(payload);
    event->has_payload = true;
    event->event_id[15] = static_cast<std::uint8_t>(logged.position);
    event->event_id[14] = static_cast<std::uint8_t>(logged.position >> 8);
    return event;
}

class FakeEndpointTables {
  public:
    struct Delivery {
        int attempts = 0;
        bool dead = false;
    };
    struct Endpoint {
        EndpointRow row;
        std::uint64_t created = 0;  // it gets the events of this transaction and later ones
        std::uint64_t changed = 0;
        // Its cursor, if it is behind.
        EndpointPlace cursor{};
        std::deque<std::int64_t> batch{};
        std::map<std::int64_t, Delivery> deliveries{};
        bool failing = false;
        std::string error{};
        int refusals = 0;
    };

    // -- The side of the test ---------------------------------------------------------------------

    Endpoint& add(EndpointRow row) {
        Endpoint& endpoint = endpoints_[row.name];
        endpoint = {};
        endpoint.row = std::move(row);
        if (endpoint.row.secret_name.empty())
            endpoint.row.secret_name = endpoint.row.name;
        endpoint.created = next_xid_;
        endpoint.row.since = now();
        touch(endpoint);
        fresh_.insert(endpoint.row.name);
        return endpoint;
    }
    void remove(const std::string& name) {
        endpoints_.erase(name);
        fresh_.erase(name);
        next_xid_++;
    }
    Endpoint& at(const std::string& name) { return endpoints_.at(name); }
    std::map<std::string, Endpoint>& all() { return endpoints_; }
    // Its row is another one now.
    void touch(Endpoint& endpoint) { endpoint.changed = next_xid_++; }
    // Its owner or an operator has done something.
    void change(Endpoint& endpoint) {
        touch(endpoint);
        endpoint.row.changed_by = endpoint.changed;
    }
    void pause(const std::string& name, bool paused) {
        at(name).row.paused = paused;
        change(at(name));
    }

    const LoggedEvent& log(std::string topic, std::string key) {
        return log_.emplace_back(LoggedEvent{next_xid_++,
                                             static_cast<std::int64_t>(log_.size()) + 1,
                                             std::move(topic), std::move(key)});
    }
    const std::vector<LoggedEvent>& logged() const { return log_; }
    // Every transaction so far has finished.
    Snapshot now() const { return {next_xid_, next_xid_, {}}; }

    int refused_after = 3;  // attempts after which a refused event is a dead letter
    std::size_t max_fetched = 5;

    // -- The side of the sink ---------------------------------------------------------------------

    EndpointAnswer ask(const std::string& text) {
        const std::optional<Json::Value> parsed = parse_json(text);
        if (!parsed)
            ADD_FAILURE() << "no JSON: " << text;
        const Json::Value& question = *parsed;
        const EndpointPlace place = place_of(question["place"]);
        const Snapshot asked_at = now();  // so what this question changes is listed once more
        tell(question, place);
        begin_fresh(place);
        EndpointAnswer answer;
        list(question, asked_at, answer);
        for (const Json::Value& name : question["fetch"])
            if (endpoints_.contains(name.asString()))
                fetch(endpoints_.at(name.asString()), answer);
        return answer;
    }

    static bool covers(const EndpointPlace& place, const LoggedEvent& event) {
        return place.done.finished(event.xid) ||
               (place.upto && place.upto->finished(event.xid) && event.position <= place.position);
    }
    static bool takes(const Endpoint& endpoint, const LoggedEvent& event) {
        return TopicFilter::parse(endpoint.row.topics).value().matches(event.topic);
    }

  private:
    static EndpointPlace place_of(const Json::Value& json) {
        EndpointPlace place;
        place.done = Snapshot::parse(json["done"].asString()).value();
        if (json.isMember("upto"))
            place.upto = Snapshot::parse(json["upto"].asString());
        place.position = json["position"].asInt64();
        return place;
    }

    void tell(const Json::Value& question, const EndpointPlace& place) {
        each(question["fall_back"], [&](Endpoint& endpoint, const Json::Value& item) {
            if (endpoint.row.behind)
                return;
            fall_back(endpoint, place);
            for (const Json::Value& position : item["positions"])
                endpoint.batch.push_back(position.asInt64());
        });
        each(question["settled"], [&](Endpoint& endpoint, const Json::Value& item) {
            for (const Json::Value& position : item["positions"])
                take_out(endpoint, position.asInt64());
        });
        each(question["refused"], [&](Endpoint& endpoint, const Json::Value& item) {
            refuse(endpoint, item["position"].asInt64(), item["permanent"].asBool());
            endpoint.error = item["error"].asString();
        });
        each(question["failing"], [&](Endpoint& endpoint, const Json::Value& item) {
            endpoint.failing = !item["since"].isNull();
            if (endpoint.failing)
                endpoint.error = item["error"].asString();
        });
        each(question["gone"], [&](Endpoint& endpoint, const Json::Value& item) {
            endpoint.row.paused = true;
            endpoint.error = item["error"].asString();
            touch(endpoint);
        });
    }

    template <class Function>
    void each(const Json::Value& list, Function function) {
        for (const Json::Value& item : list)
            if (const auto found = endpoints_.find(item["endpoint"].asString());
                found != endpoints_.end())
                function(found->second, item);
    }

    void fall_back(Endpoint& endpoint, const EndpointPlace& place) {
        endpoint.row.behind = true;
        endpoint.row.wanted = false;
        endpoint.cursor = place;
        const std::optional<Snapshot>& since = endpoint.row.since;
        if (since && since->xmax > place.done.xmax)
            endpoint.cursor.done = *since;
        if (since && place.upto && since->xmax > place.upto->xmax)
            endpoint.cursor.upto.reset();
        touch(endpoint);
    }

    void begin_fresh(const EndpointPlace& place) {
        for (const std::string& name : fresh_) {
            Endpoint& endpoint = endpoints_.at(name);
            const Snapshot& handed = place.upto ? *place.upto : place.done;
            if (handed.xmax > endpoint.row.since->xmax) {
                EndpointPlace begin;
                begin.done = *endpoint.row.since;
                fall_back(endpoint, begin);
            }
        }
        fresh_.clear();
    }

    static void take_out(Endpoint& endpoint, std::int64_t position) {
        std::erase(endpoint.batch, position);
        endpoint.deliveries.erase(position);
    }

    void refuse(Endpoint& endpoint, std::int64_t position, bool permanent) {
        std::erase(endpoint.batch, position);
        Delivery& delivery = endpoint.deliveries[position];
        delivery.attempts++;
        delivery.dead = permanent || delivery.attempts >= refused_after;
        endpoint.refusals++;
    }

    const std::string& key_of(std::int64_t position) const {
        return log_.at(static_cast<std::size_t>(position - 1)).key;
    }

    // Whether an earlier event of the key waits.
    bool is_held(const Endpoint& endpoint, std::int64_t position) const {
        const std::string& key = key_of(position);
        return !key.empty() && std::any_of(endpoint.deliveries.begin(), endpoint.deliveries.end(),
                                           [&](const auto& entry) {
                                               return entry.first < position &&
                                                      !entry.second.dead &&
                                                      key_of(entry.first) == key;
                                           });
    }

    void list(const Json::Value& question, const Snapshot& asked_at, EndpointAnswer& answer) {
        std::optional<Snapshot> known;
        if (question.isMember("known"))
            known = Snapshot::parse(question["known"].asString());
        answer.known = asked_at.to_string();
        answer.count = endpoints_.size();
        for (auto& [name, endpoint] : endpoints_)
            if (!known || !known->finished(endpoint.changed))
                answer.changed.push_back(endpoint.row);
    }

    void fetch(Endpoint& endpoint, EndpointAnswer& answer) {
        EndpointFetched fetched;
        fetched.name = endpoint.row.name;
        if (!endpoint.row.behind)
            fetched.caught_up = endpoint.row.since;
        else if (!endpoint.row.paused)
            pick(endpoint, fetched, answer);
        answer.fetched.push_back(std::move(fetched));
    }

    void pick(Endpoint& endpoint, EndpointFetched& fetched, EndpointAnswer& answer) {
        std::erase_if(endpoint.batch, [&](std::int64_t position) {
            return !takes(endpoint, log_.at(static_cast<std::size_t>(position - 1)));
        });
        for (auto& [position, delivery] : endpoint.deliveries)
            if (!delivery.dead && !is_held(endpoint, position))
                give(fetched, answer, position, delivery.attempts);
        if (!fetched.events.empty())
            return;
        if (endpoint.batch.empty())
            read_on(endpoint);
        for (const std::int64_t position : std::deque<std::int64_t>(endpoint.batch)) {
            if (fetched.events.size() == max_fetched)
                break;
            if (is_held(endpoint, position)) {
                std::erase(endpoint.batch, position);
                endpoint.deliveries[position];  // parked
            } else {
                give(fetched, answer, position, 0);
            }
        }
        if (!fetched.events.empty())
            return;
        if (std::any_of(endpoint.deliveries.begin(), endpoint.deliveries.end(),
                        [](const auto& entry) { return !entry.second.dead; })) {
            fetched.due_in = 0;
            return;
        }
        endpoint.row.behind = false;
        endpoint.row.since = endpoint.cursor.done;
        fetched.caught_up = endpoint.row.since;
        touch(endpoint);
    }

    void read_on(Endpoint& endpoint) {
        for (const LoggedEvent& event : log_)
            if (!covers(endpoint.cursor, event) && event.xid < next_xid_ && takes(endpoint, event))
                endpoint.batch.push_back(event.position);
        endpoint.cursor.done = now();
        endpoint.cursor.upto.reset();
    }

    void give(EndpointFetched& fetched, EndpointAnswer& answer, std::int64_t position,
              int attempts) {
        const LoggedEvent& logged = log_.at(static_cast<std::size_t>(position - 1));
        if (answer.blocks.empty())
            answer.blocks.push_back(std::make_unique<EventBlock>());
        Event* event = append_logged(*answer.blocks.back(), logged);
        if (event == nullptr) {
            answer.blocks.push_back(std::make_unique<EventBlock>());
            event = append_logged(*answer.blocks.back(), logged);
        }
        fetched.events.push_back(event);
        fetched.attempts.push_back(attempts);
    }

    std::map<std::string, Endpoint> endpoints_;
    std::set<std::string> fresh_;  // no question has listed them
    std::vector<LoggedEvent> log_;
    std::uint64_t next_xid_ = 100;
};

}  // namespace outbox
