"""Reads a request of OTLP/HTTP in JSON with OpenTelemetry's own definitions, and prints its spans.

Needs opentelemetry-proto (tests/requirements.txt). The JSON of OTLP differs from that of protobuf in the ids, which are
hexadecimal. An unknown name or a value of another type is an error.
"""

import base64
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

request = json.load(sys.stdin)
for resource in request["resourceSpans"]:
    for scope in resource["scopeSpans"]:
        for span in scope["spans"]:
            for name in ("traceId", "spanId", "parentSpanId"):
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
message = json_format.ParseDict(request, ExportTraceServiceRequest())


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


spans = [
    {
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind),
        "from": span.start_time_unix_nano,
        "to": span.end_time_unix_nano,
        "attributes": attributes(span.attributes),
        "error": span.status.message,
        "failed": span.status.code == 2,
        "resource": attributes(resource.resource.attributes),
    }
    for resource in message.resource_spans
    for scope in resource.scope_spans
    for span in scope.spans
]
json.dump(spans, sys.stdout)
