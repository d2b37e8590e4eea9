// The subject that an event is published to.
//
// Producers choose topics and keys, so a value must not break out of its place: a blank would end the
// subject, a wildcard is not allowed where messages are published, and a dot in a key would add a level.
// Such bytes are percent-encoded. What is left is checked as a whole: no part may be empty, and the
// subjects that NATS reserves cannot be reached, among them the API that deletes streams.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/event.hpp"
#include "core/text_template.hpp"

namespace outbox {

// The line with the subject must not be longer than 4096 bytes (max_control_line of the server).
constexpr std::size_t max_subject = 3900;

// Appends the subject of the event. May throw std::bad_alloc.
void append_subject(std::string& out, const TextTemplate& subject, const Event& event,
                    std::string_view database);

// Returns the reason why nothing can be published to the subject, or std::nullopt. `may_use_dollar`: its
// first part may begin with a dollar sign.
std::optional<std::string> invalid_subject(std::string_view subject, bool may_use_dollar);

// Makes a pattern for the subjects of events of which some parts are not known: an empty part becomes
// "*".
std::string subject_pattern(std::string_view subject);

}  // namespace outbox
