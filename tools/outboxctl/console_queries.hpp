// Queries of the console. All answers are JSON, which PostgreSQL makes.
#pragma once

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "commands.hpp"
#include "session.hpp"

namespace outboxctl {

// Another request has worked on the databases for too long.
struct Busy : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A destination or consumer. `database` is what overview() calls it.
struct Place {
    std::string database;
    Side side;
    std::string name;
};

// Events to look for: empty members match all.
struct Search {
    std::string topic, event_type, aggregate_type, aggregate_id, ordering_key;
};

// One request at a time connects, works and disconnects. Results are bounded: in rows, and in the
// characters of each text that events and errors bring. All throw Refused, WrongUsage or Busy.
class ConsoleQueries {
  public:
    ConsoleQueries(std::vector<std::string> databases, bool all)
        : databases_(std::move(databases)), all_(all) {}

    // All databases, with the figures of destinations and consumers, and their problems.
    std::string overview();
    // A destination or consumer: state, held keys, dead letters, operations.
    std::string place(const Place& place);
    std::string dead_letter(const Place& place, const std::string& event_id);
    // An event in all databases: where it was enqueued, sent and received.
    std::string journey(const std::string& event_id);
    // The latest events that match, of each database.
    std::string find(const Search& search);
    // pause, resume, redrive or discard. `event_ids` are separated by commas.
    std::string operate(const std::string& action, const Place& place, const std::string& event_ids,
                        const std::string& why);

  private:
    std::string of_each(const std::function<std::string(Session&)>& look);
    std::string in(const std::string& database, bool writes,
                   const std::function<std::string(Session&)>& work);

    const std::vector<std::string> databases_;
    const bool all_;
    std::timed_mutex mutex_;
};

// Returns a string of JSON, with its quotes.
std::string json_string(const std::string& text);

}  // namespace outboxctl
