// Limits that C++ and SQL share. sql/constants.hpp gives them to SQL by name, and
// tests/layout/constants.py fails if a file of SQL has the number again.
#pragma once

#include <cstddef>
#include <string_view>

namespace outbox {

// Events. In bytes, the smallest of brokers' limits: Pub/Sub keys 1,024, Kafka topics 249, AMQP short
// strings 255 (from the brokers' documentation).
inline constexpr int max_name_length = 249;  // topic, aggregate type, event type, content type
inline constexpr int max_key_length = 1024;  // aggregate id, ordering key
inline constexpr int max_headers = 64;
inline constexpr int max_headers_size = 8192;
inline constexpr int max_header_name_length = 128;

// An aggregate type with the suffix is the topic of events that have no other.
inline constexpr std::string_view topic_suffix = ".events";
inline constexpr int max_length_before_suffix =
    max_name_length - static_cast<int>(topic_suffix.size());

// A payload of this size is never too large: outbox.max_payload_size cannot be less.
inline constexpr int min_payload_limit = 1024;

// Messages of an inbox, which has the limits of events but for these: what can still be returned as text.
inline constexpr int max_message_headers_kb = 64;
inline constexpr int max_message_headers_size = max_message_headers_kb * 1024;
inline constexpr int max_message_payload_mb = 256;
inline constexpr int max_message_payload_size = max_message_payload_mb * 1024 * 1024;

// When events in trouble hold this many keys of a destination, nothing more is read.
inline constexpr std::size_t max_held_keys = 100'000;

// Endpoints of a destination, which its relay keeps in memory, and bytes of their texts. Each of their
// topics has a place in an index, which is larger than a short text.
inline constexpr std::size_t max_endpoints = 50'000;
inline constexpr std::size_t max_endpoint_text_size = 64 * 1024 * 1024;
inline constexpr std::size_t endpoint_topic_size = 64;

}  // namespace outbox
