// Events as CloudEvents 1.0 over HTTP (https://github.com/cloudevents/spec, HTTP protocol binding).
//
//   attribute         from
//   id                event id
//   source            /<database>/<aggregate type>
//   type              event type
//   subject           aggregate id
//   time              occurred_at
//   partitionkey      ordering key, unless empty
//   sequence          position
//   aggregateversion  version, if it has one
//   schemaversion     schema version
//   topic             topic
//   sourceeventid     source event id, if it has one
//
// A header of the event whose name is a valid attribute name (only a-z and 0-9) becomes an
// extension attribute. All others become HTTP headers. In a batch, events have no HTTP headers of
// their own, so they become attributes too, and lose the other characters of their names.
//
// `traceparent` and `tracestate` (W3C Trace Context) become both, so that a receiver that knows
// nothing of CloudEvents continues the trace.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/event.hpp"
#include "net/exchange.hpp"

namespace outbox {

// Returns the first part of the attribute `source`. `database` may be any text.
std::string source_prefix(std::string_view database);

// Returns true if a header of this name becomes an attribute.
bool is_attribute_name(std::string_view name);

// Returns true for a header of W3C Trace Context.
bool is_trace_header(std::string_view name) noexcept;

// The parts of binary mode, for protocols other than HTTP: each attribute except those of the data,
// and each header that is not an attribute. A value is valid only during the call.
using TakePart = std::function<void(std::string_view name, std::string_view value)>;
void take_apart(const Event& event, std::string_view source_prefix, const TakePart& attribute,
                const TakePart& header);

// Binary mode. The body is the payload itself.
void encode_binary(const Event& event, std::string_view source_prefix, RequestContent& content);
// Structured mode: the event as a JSON document.
void encode_structured(const Event& event, std::string_view source_prefix, RequestContent& content);
// The same document for protocols without headers: all headers of the event are attributes, as in
// a batch.
void append_event_document(std::string& out, const Event& event, std::string_view source_prefix);
// Returns an upper bound of its size.
std::size_t event_document_bound(const Event& event, std::string_view source_prefix) noexcept;
// Batched mode: a JSON array.
void encode_batched(std::span<Event* const> events, std::string_view source_prefix,
                    RequestContent& content);

}  // namespace outbox
