"""The HTTP port of a program, by its bytes."""

from __future__ import annotations

import socket
from pathlib import Path


class HttpPort:
    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def peak(self) -> int:
        """The most memory that the program has had, in kB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0])

    def connect(self, timeout: float = 60) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, request: bytes, timeout: float = 60, ends: bool = False) -> bytes:
        """Returns the answer. `ends`: the client says that nothing follows."""
        with self.connect(timeout) as connection:
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65_536), b""))

    def is_well(self) -> bool:
        return self.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")
