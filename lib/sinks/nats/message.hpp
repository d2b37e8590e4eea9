// Events as messages of NATS: the command HPUB with the headers.
//
//   Nats-Msg-Id   the event id, by which a stream recognizes a repetition
//   attributes    headers with the names of the event's columns, and ordering_key if it has one
//   binary        headers "ce-..." as the NATS binding of CloudEvents has them
//   structured    a CloudEvents document
//
// A header of the event whose name begins with "Nats-" is left out, because such headers are
// commands to the server. One of them purges the stream.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/event.hpp"
#include "net/exchange.hpp"
#include "sinks/event_format.hpp"

namespace outbox {

class NatsEncoder {
  public:
    NatsEncoder(EventFormat format, std::string_view database);

    // The server takes the message only under these conditions.
    struct Demands {
        std::string_view stream{};         // the stream that must take it; any if empty
        std::string_view last_sequence{};  // sequence of the subject's last message; any if empty
    };

    // Makes the message, for size() and append(). The event must outlive it. May throw
    // std::bad_alloc.
    void encode(const Event& event, const Demands& demands);

    std::size_t header_size() const noexcept { return headers_.size(); }
    std::size_t size() const noexcept { return headers_.size() + payload_.size(); }
    void append(std::string& out, std::string_view subject, std::string_view reply) const;

    static std::size_t size_of(const Event& event) noexcept;

  private:
    enum class Values { ours, of_cloud_events };

    void add(std::string_view name, std::string_view value, Values values = Values::ours);
    void add_attributes(const Event& event);
    void add_cloud_event(const Event& event);
    void add_beside_document(const Event& event);

    const EventFormat format_;
    const std::string source_prefix_;
    std::string headers_;
    std::string_view payload_;
    std::string name_;         // scratch space
    RequestContent document_;  // a CloudEvents document
};

}  // namespace outbox
