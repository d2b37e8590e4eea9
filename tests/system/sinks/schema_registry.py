"""A schema registry as the sink sees one: subjects, their latest schema, and schemas by their ids."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER, PASSWORD = "key-of-registry", "s3cret-of-registry"


class SchemaRegistry:
    def __init__(self) -> None:
        self.schemas: list[str] = []  # the id of the first one is FIRST_ID
        self.subjects: dict[str, int] = {}
        self.asked: list[str] = []  # paths
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    FIRST_ID = 70_000  # it needs three bytes

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/registry/"

    def register(self, subject: str, schema: Any) -> int:
        self.schemas.append(json.dumps(schema))
        self.subjects[subject] = self.FIRST_ID + len(self.schemas) - 1
        return self.subjects[subject]

    def schema(self, id: int) -> Any:
        return json.loads(self.schemas[id - self.FIRST_ID])

    def start(self) -> None:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if registry._server is None:  # a connection that has survived it
                    self.close_connection = True
                    return
                status, answer = registry.reply(self.path, self.headers.get("Authorization", ""))
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Nothing listens on its port until it is started again."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def reply(self, path: str, authorization: str) -> tuple[int, dict[str, Any]]:
        known = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if authorization != known:
            return 401, {"error_code": 401, "message": f"you said {authorization}"}
        self.asked.append(path)
        parts = [urllib.parse.unquote(part) for part in path.split("/")]
        if parts[:3] != ["", "registry", "subjects"] or parts[4:] != ["versions", "latest"]:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        id = self.subjects.get(parts[3])
        if id is None:
            return 404, {"error_code": 40401, "message": f"Subject '{parts[3]}' not found."}
        return 200, {"subject": parts[3], "version": 1, "id": id, "schema": self.schemas[id - self.FIRST_ID]}
