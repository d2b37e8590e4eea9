"""The http sink, in binary format: one event per request. Its server is a `Receiver`."""

from __future__ import annotations

import nginx
from certificates import make_certificates
from cluster import make_directory
from database import Database
from receiver import Behaviour, Event, Receiver, Request, answer, events_of

from .fault_proxy import FaultProxy
from .sink import STRUCTURED, Message, Sink, message_of_cloud_event, message_of_document

TOO_LARGE = 1_000_000  # for our receiver


class HttpSink(Sink):
    name = "http"
    module = "pg_outbox_http"
    cannot = {
        "batches": "one event per request; the batched format is in test_http.py",
        "partial": "one event per request",
        "topics": "the URL is all there is",
    }
    cloud_events = ("binary", "structured")
    proxy: FaultProxy

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.receiver = Receiver()
        self.proxy = FaultProxy(self.receiver.port)
        self._received = 0

    def url(self) -> str:
        return self.proxy.url()

    def receive(self) -> list[Message]:
        events = self.receiver.events()
        new, self._received = events[self._received :], len(events)
        return [message_of_event(event) for event in new]

    def close(self) -> None:
        super().close()
        self.receiver.close()

    def carried(self, request: Request) -> list[Message]:
        return [message_of_event(event) for event in events_of(request)]

    def throttle(self, seconds: int) -> Behaviour:
        return answer(429, [("Retry-After", str(seconds))])

    def size_limit(self) -> int:
        self.proxy.on(lambda request: len(request.body) > TOO_LARGE, answer(413))
        return TOO_LARGE

    def credentials(self, number: int = 1) -> dict[str, str]:
        return {"token": f"s3cret-token-{number}"}

    def refuse_credentials(self) -> Behaviour:
        return answer(401)


class Http2Sink(HttpSink):
    """Uses TLS and HTTP/2: nginx passes requests on to the proxy, and answers 502 if that ends a connection."""

    name = "http2"

    CONFIGURATION = """
    {main}
    events {{ }}
    http {{
        access_log off;
        client_max_body_size 100m;
        {paths}
        server {{
            listen 127.0.0.1:{port} ssl http2;
            ssl_certificate {root}/server.crt; ssl_certificate_key {root}/server.key;
            proxy_http_version 1.1; proxy_next_upstream off;
            location / {{ proxy_pass {url}; }}
        }}
    }}
    """

    def __init__(self, database: Database) -> None:
        nginx.need()
        super().__init__(database)
        root = make_directory("http2")
        self.authority = make_certificates(root).authority
        self.nginx = nginx.Nginx(self.CONFIGURATION, root, url=self.proxy.url())

    def url(self) -> str:
        return f"https://127.0.0.1:{self.nginx.port}/events"

    def options(self) -> dict[str, str]:
        return {"ca_file": self.authority}

    def close(self) -> None:
        self.nginx.close()
        super().close()


def message_of_event(event: Event) -> Message:
    content_type = event.request.headers.get("content-type")
    if content_type and content_type.startswith(STRUCTURED):
        return message_of_document(event.request.body)
    return message_of_cloud_event(event.attributes, content_type, event.data)
