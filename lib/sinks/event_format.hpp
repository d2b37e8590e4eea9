// The form in which a receiver gets events: the option `format`. Each sink declares its choices.
#pragma once

#include "core/option.hpp"

namespace outbox {

enum class EventFormat {
    attributes,  // payload, and attributes with names of pg_outbox; not for HTTP
    binary,      // payload, and CloudEvents attributes as `ce-` headers
    structured,  // a CloudEvents JSON document
    batched,     // a JSON array of such documents; only for HTTP
    payload,     // the payload and nothing else
};

inline EventFormat event_format(const OptionValues& options, const OptionSpec& format) {
    const std::string text = options.text(format);
    return text == "binary"       ? EventFormat::binary
           : text == "structured" ? EventFormat::structured
           : text == "batched"    ? EventFormat::batched
           : text == "payload"    ? EventFormat::payload
                                  : EventFormat::attributes;
}

}  // namespace outbox
