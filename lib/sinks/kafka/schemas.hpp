// The schemas of events. A payload has the id of its schema in front of it (Confluent's wire
// format). The application has encoded the payload, so the sink needs only this id.
//
// The id is in a header of the event, or it is that of the latest schema of a subject, which a
// schema registry is asked for. An answer is kept as long as the relay runs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/sink.hpp"
#include "net/http_client.hpp"
#include "sinks/kafka/options.hpp"

namespace outbox {

struct Schema {
    enum class State {
        asking,
        known,
        unknown,  // so far, the registry has no such subject
        invalid,  // the event does not name a schema
        failed,   // the registry did not answer as it should
    };
    State state = State::asking;
    std::string error{};  // why it is not known
    std::uint32_t id = 0;
};

struct SchemaOfEvent {
    std::shared_ptr<const Schema> schema{};  // nullptr if the event has no payload
    std::string indexes{};                   // message indexes of protobuf, encoded
};

class Schemas {
  public:
    Schemas(const KafkaOptions& options, const Clock& clock);

    int descriptor() const noexcept { return client_ ? client_->descriptor() : -1; }
    Micros deadline() const noexcept { return client_ ? client_->deadline() : never; }

    // Returns the schemas of all events of a batch, which are records of `topic`; empty if payloads
    // have no frame. Asks for those that it does not know.
    std::vector<SchemaOfEvent> of(const Batch& batch, const std::string& topic);
    // Returns the schema of a topic whose subject is named after it.
    std::shared_ptr<const Schema> of_topic(const std::string& topic);
    // Takes in answers.
    void step(Micros now);

  private:
    struct Question {
        std::string subject;
        std::shared_ptr<Schema> schema{};
        Exchange exchange{};
    };

    SchemaOfEvent of(const Event& event, const std::string& topic);
    std::shared_ptr<Schema> look_up(const std::string& subject);
    void ask_waiting();
    void take_answer(const Question& question);

    const SchemaOptions options_;
    const std::string source_;
    std::string path_;  // comes before the path of a subject

    std::map<std::string, std::shared_ptr<Schema>> subjects_;  // known, or asked for
    std::deque<std::unique_ptr<Question>> waiting_;
    std::vector<std::unique_ptr<Question>> asked_;
    std::unique_ptr<HttpClient> client_;  // destroyed before them; nullptr if none is asked
    std::vector<Exchange*> done_;
};

// Returns true if some are still asked for.
bool are_pending(const std::vector<SchemaOfEvent>& schemas) noexcept;
// Returns the first that could not be asked for, or nullptr.
const Schema* failed_one(const std::vector<SchemaOfEvent>& schemas) noexcept;

// Returns the bytes in front of the payload.
std::string frame_of(const SchemaOfEvent& schema);

// Encodes the path to a message in a schema of protobuf, such as "1" or "0,2". Returns an empty
// text if it is malformed.
std::string encoded_indexes(std::string_view list);

}  // namespace outbox
