// Options for how events become records.
#pragma once

#include <vector>

#include "sinks/attribute_names.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

// Form of a payload whose content type is JSON, unless the format is `structured`.
enum class JsonPayload {
    unchanged,
    compact,  // without white space between tokens
    string,   // a JSON string with the text of the document
};

struct RecordForm {
    EventFormat format = EventFormat::attributes;
    std::vector<NamedAttribute>
        headers{};          // of the format `attributes`; if empty, all under their own names
    bool json_key = false;  // the key is a JSON string
    JsonPayload json_payload = JsonPayload::unchanged;
};

}  // namespace outbox
