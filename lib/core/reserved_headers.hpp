// Headers that events must not set. sql/constants.hpp gives the list to SQL.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

namespace outbox {

// Those that frame the message or authenticate its sender, those by which frameworks take it for
// another method or path, and names of CloudEvents attributes that sinks fill from the event. In lower
// case, sorted. Names that begin with "ce-" or "ce_" are reserved as well.
inline constexpr std::string_view reserved_headers[] = {
    "aggregateversion",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "data",
    "datacontenttype",
    "dataschema",
    "expect",
    "host",
    "id",
    "keep-alive",
    "partitionkey",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "schemaversion",
    "sequence",
    "set-cookie",
    "source",
    "sourceeventid",
    "specversion",
    "subject",
    "te",
    "time",
    "topic",
    "trailer",
    "transfer-encoding",
    "type",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "www-authenticate",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
};
static_assert(std::is_sorted(std::begin(reserved_headers), std::end(reserved_headers)));

}  // namespace outbox
