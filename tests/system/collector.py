"""A collector of OpenTelemetry: an HTTP receiver whose requests are read by OpenTelemetry's own definitions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster import Installation
from receiver import Receiver
from waiting import wait_until

Span = dict[str, Any]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = f"00-{TRACE}-00f067aa0ba902b7-01"
NOT_SAMPLED = f"00-{TRACE}-00f067aa0ba902b7-00"


class Collector(Receiver):
    def __init__(self, installation: Installation) -> None:
        python = installation.build / "servers/python/bin/python"
        check = [str(python), "-c", "import opentelemetry.proto.trace.v1.trace_pb2"]
        if not python.exists() or subprocess.run(check, capture_output=True).returncode != 0:
            pytest.skip("NOT TESTED: opentelemetry-proto is not installed; see tests/requirements.txt")
        self._reader = [str(python), str(Path(__file__).with_name("otlp_reader.py"))]
        self._read: dict[int, list[Span]] = {}  # by number of the request
        super().__init__()

    @property
    def endpoint(self) -> str:
        return self.url("/v1/traces")

    def spans(self) -> list[Span]:
        """All that have arrived so far."""
        for request in list(self.requests):
            if request.number not in self._read:
                found = subprocess.run(self._reader, input=request.body, check=True, capture_output=True).stdout
                self._read[request.number] = json.loads(found)
        return [span for number in sorted(self._read) for span in self._read[number]]

    def wait_for_spans(self, count: int) -> list[Span]:
        return wait_until(self.spans, lambda found: len(found) >= count, what=f"{count} spans")
