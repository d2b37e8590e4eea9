// How an event looks to its receiver: the option `format`, of which each sink declares its choices.
#pragma once

#include "core/option.hpp"

namespace outbox {

enum class EventFormat {
    attributes,  // payload and attributes under our own names; not over HTTP
    binary,      // payload, CloudEvents attributes as `ce-` headers
    structured,  // a CloudEvents JSON document
    batched,     // a JSON array of those; over HTTP only
};

inline EventFormat event_format(const OptionValues& options, const OptionSpec& format) {
    const std::string text = options.text(format);
    return text == "binary"       ? EventFormat::binary
           : text == "structured" ? EventFormat::structured
           : text == "batched"    ? EventFormat::batched
                                  : EventFormat::attributes;
}

}  // namespace outbox
