"""outboxctl serve, as tests run it."""

from __future__ import annotations

import subprocess
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from passwords import assert_no_passwords


class Served:
    """outboxctl serve on a port of its own."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [program, "serve", "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.url = self.process.stdout.readline().split()[-1].rsplit("/", 1)[0]

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=180) as response:
            return response.read().decode()

    def up(self) -> dict[str, float]:
        """outboxctl_up by database; the page must satisfy the parser of Prometheus' client."""
        families = list(text_string_to_metric_families(self.get("/metrics")))
        assert len({family.name for family in families}) == len(families)
        return {s.labels["database"]: s.value for f in families if f.name == "outboxctl_up" for s in f.samples}

    def stop(self) -> str:
        """Returns what it wrote to standard error."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=180)
        assert self.process.returncode == 0
        assert_no_passwords(errors, "outboxctl serve")
        return errors
