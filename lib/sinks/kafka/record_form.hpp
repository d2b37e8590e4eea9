// What options say about the records that events become.
#pragma once

#include <vector>

#include "sinks/attribute_names.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

// What becomes of a payload whose content type is JSON, unless the format is `structured`.
enum class JsonPayload {
    unchanged,
    compact,  // without white space between tokens
    string,   // a JSON string that has the document as its text
};

struct RecordForm {
    EventFormat format = EventFormat::attributes;
    std::vector<NamedAttribute>
        headers{};          // of the format `attributes`; empty: all, as they are named
    bool json_key = false;  // the key is a JSON string
    JsonPayload json_payload = JsonPayload::unchanged;
};

}  // namespace outbox
