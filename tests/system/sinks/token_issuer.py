"""An issuer of tokens (OpenID Connect, client credentials) over TLS, and the key that brokers verify them with."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from certificates import Certificates

CLIENT_ID = "relay"
CLIENT_SECRET = "s3cret/of+the relay"
ISSUER = "https://id.example.com"

Answer = tuple[int, dict[str, Any]]


class SigningKey:
    """An RSA key, and its public part in a file for brokers (RFC 7517)."""

    def __init__(self, directory: Path, name: str = "issuer") -> None:
        self.path = directory / f"{name}.key"
        self.jwks = directory / f"{name}.json"
        self.openssl("genrsa", "-out", str(self.path), "2048")
        modulus = self.openssl("rsa", "-in", str(self.path), "-noout", "-modulus").decode().strip()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", "e": "AQAB",
               "n": encoded(bytes.fromhex(modulus.partition("=")[2]))}  # fmt: skip
        self.jwks.write_text(json.dumps({"keys": [key]}))

    def openssl(self, *arguments: str, input: bytes = b"") -> bytes:
        return subprocess.run(["openssl", *arguments], check=True, capture_output=True, input=input).stdout

    def token(self, claims: dict[str, Any]) -> str:
        parts = [{"alg": "RS256", "kid": "1", "typ": "JWT"}, claims]
        text = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        signature = self.openssl("dgst", "-sha256", "-sign", str(self.path), input=text.encode())
        return f"{text}.{encoded(signature)}"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenIssuer:
    """Listens on a port of 127.0.0.1. `answer` may be replaced; `asked` are the forms that came."""

    def __init__(self, key: SigningKey, certificates: Certificates) -> None:
        self.key = key
        self.lifetime = 300
        self.issued: list[str] = []
        self.asked: list[dict[str, str]] = []
        self.answer: Callable[[], Answer] = self.token
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.certificate, certificates.key)
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/realms/shop/token"

    def start(self) -> None:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, answer = issuer.reply(self.path, self.headers.get("Authorization", ""), body)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that does not trust us has gone."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self._server.socket = self._context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Nothing listens on its port until it is started again."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def reply(self, path: str, authorization: str, body: str) -> Answer:
        pair = ":".join(urllib.parse.quote(text, safe="") for text in (CLIENT_ID, CLIENT_SECRET))
        known = "Basic " + base64.b64encode(pair.encode()).decode()
        form = dict(urllib.parse.parse_qsl(body))
        if path != "/realms/shop/token" or form.pop("grant_type", "") != "client_credentials":
            return 400, {"error": "invalid_request"}
        if authorization != known:
            return 401, {"error": "invalid_client", "you said": authorization}
        self.asked.append(form)
        return self.answer()

    def token(self) -> Answer:
        now = int(time.time())
        claims = {"iss": ISSUER, "sub": CLIENT_ID, "iat": now, "nbf": now - 60,
                  "exp": now + self.lifetime, "scope": "write", "jti": str(len(self.issued))}  # fmt: skip
        self.issued.append(self.key.token(claims))
        return 200, {"access_token": self.issued[-1], "token_type": "Bearer", "expires_in": self.lifetime}
