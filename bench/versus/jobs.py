"""Job queues on PostgreSQL, whose job is an event: Graphile Worker (Node.js) and River (Go).

Both are installed from their package registries into the build directory.
"""

import os
import shutil
import subprocess
from pathlib import Path

from versus.peer import PAYLOAD, Queue
from workload import Unavailable

HERE = Path(__file__).resolve().parent


class JobQueue(Queue):
    directory = ""

    def home(self) -> Path:
        return self.bench.programs.parent / "servers" / self.directory

    def url(self) -> str:
        cluster = self.bench.cluster
        return f"postgres:///{self.bench.database}?host={cluster.root}&port={cluster.settings['port']}&user=postgres"

    def run(self, *command: str, directory: Path | None = None) -> None:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/local/go/bin"},
        )
        if done.returncode != 0:
            raise Unavailable(f"{command[0]}: {(done.stderr or done.stdout)[-500:]}")

    def need(self, program: str) -> None:
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/local/go/bin") is None:
            raise Unavailable(f"{program} is not installed")


class Graphile(JobQueue):
    directory = "graphile"

    def stage(self) -> None:
        self.need("npm")
        if not (self.home() / "node_modules" / "graphile-worker").exists():
            self.run(
                "npm",
                "install",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(self.home()),
                "graphile-worker@0.17.3",
            )

    def prepare(self) -> None:
        self.run("node", str(self.home() / "node_modules/.bin/graphile-worker"), "--schema-only", "-c", self.url())

    def clear(self) -> None:
        self.bench.sql.execute("TRUNCATE graphile_worker._private_jobs CASCADE")

    def fill(self, events: int) -> None:
        """Many jobs a call: each call notifies, and commits that notify wait for one another."""
        for _ in range(events // 1000):
            self.bench.sql.execute(
                "SELECT count(*) FROM graphile_worker.add_jobs(array_fill(json_populate_record(NULL::graphile_worker.job_spec, "
                "json_build_object('identifier', 'deliver', 'payload', %s::json)), ARRAY[1000]))",
                [PAYLOAD],
            )

    def command(self) -> list:
        return ["node", HERE / "graphile.cjs", self.url()]

    def environment(self) -> dict[str, str]:
        return os.environ | {"NODE_PATH": str(self.home() / "node_modules")}

    def tables(self) -> str:
        return "c.relnamespace = 'graphile_worker'::regnamespace"


class River(JobQueue):
    directory = "river"

    def stage(self) -> None:
        self.need("go")
        self.run("go", "build", "-o", str(self.home() / "river"), ".", directory=HERE / "river")

    def prepare(self) -> None:
        self.run(str(self.home() / "river"), "migrate", self.url())

    def clear(self) -> None:
        self.bench.sql.execute("TRUNCATE river_job")

    def command(self) -> list:
        return [self.home() / "river", "work", self.url()]

    def tables(self) -> str:
        return "c.relname = 'river_job'"
