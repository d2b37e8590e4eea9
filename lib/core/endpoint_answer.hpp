// Builds an EndpointAnswer from the rows of outbox_internal.ask_endpoints(), for all homes of a relay.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/endpoints.hpp"

namespace outbox {

// The columns of a row besides those of an event. A null is an empty text.
struct EndpointAnswerRow {
    std::string_view kind;
    std::string_view endpoint;
    std::string_view url;
    std::string_view topics;
    std::string_view secret_name;
    std::uint64_t xid = 0;
    bool paused = false;
    bool behind = false;
    std::string_view snapshot;
    std::int64_t count = 0;
    std::optional<double> due_in;  // seconds
    std::int32_t attempts = 0;
};

class EndpointAnswerBuilder {
  public:
    // Rows must come in the order of the function. The event of a row whose kind is `event` must have
    // been copied into block() before. Rows of other kinds, as of a later version, are ignored.
    static constexpr std::string_view event = "event";
    void add(const EndpointAnswerRow& row);

    // The block for the next event. If it has no room, next_block() makes another.
    EventBlock& block();
    void next_block();

    EndpointAnswer take();

  private:
    EndpointFetched& fetched_for(std::string_view endpoint);

    EndpointAnswer answer_;
    bool open_ = false;  // the last of answer_.fetched may get more events
};

}  // namespace outbox
