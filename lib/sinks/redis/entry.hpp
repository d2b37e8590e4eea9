// Writes events as entries of a stream: fields with values.
//
//   attributes   event_id, event_type, ... and headers under their names; ordering_key; payload
//   binary       ce_id, ce_type, ... and headers; content-type; data
//   structured   ce_id; headers that are not attributes; content-type; data, a CloudEvents document
//
// In each format the first field is the id of the event.
#pragma once

#include <string>
#include <string_view>

#include "core/event.hpp"
#include "net/exchange.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

class EntryEncoder {
  public:
    EntryEncoder(EventFormat format, std::string_view database);

    // Returns the arguments of XADD after the id. They are valid until the next call.
    void encode(const Event& event);
    std::string_view arguments() const noexcept { return arguments_; }
    std::size_t count() const noexcept { return count_; }

    // Returns an upper bound for what the event adds to a batch.
    static std::size_t size_of(const Event& event) noexcept;

  private:
    void add(std::string_view name, std::string_view value);
    void add_binary(const Event& event);
    void add_structured(const Event& event);

    const EventFormat format_;
    const std::string source_prefix_;
    std::string arguments_;
    std::size_t count_ = 0;
    RequestContent document_;  // scratch space
    std::string prefixed_;
};

}  // namespace outbox
