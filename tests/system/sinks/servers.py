"""The servers that sinks are tested against. `scripts/test.sh` installs what they need.

    pub_sub_emulator()   Google's emulator of Pub/Sub
    pub_sub_fake()       Google's pstest behind a REST front of our own, where that is absent
    moto()               SQS, SNS, Kinesis and EventBridge
    elasticmq()          another SQS, which keeps closer to the limits
    kafka()              Apache Kafka, one broker: kafka_server.py
    mosquitto(), mochi() brokers of MQTT: mqtt_server.py
    redis()              Redis: redis_server.py

Each is a process of the test's own on a free port of 127.0.0.1, and ends with the test process.
"""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import REPOSITORY, free_port
from waiting import wait_until

INSTALLED = Path(os.environ.get("OUTBOX_BUILD", REPOSITORY / "build")).resolve() / "servers"
PYTHON = INSTALLED / "python/bin/python"


class NotInstalled(Exception):
    """A server cannot run; the text says what is missing."""


@dataclass(frozen=True)
class Server:
    """Ports of a server on 127.0.0.1."""

    port: int  # REST
    grpc_port: int = 0


def add_clients_to_path() -> None:
    """Puts Amazon's and Google's libraries before those of the distribution."""
    libraries = [str(path) for path in INSTALLED.glob("python/lib/python3*/site-packages")]
    begin = next((n for n, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
    sys.path[begin:begin] = libraries


class Ended(Exception):
    """A server that should run, or cannot."""


@contextmanager
def running(command_for: Callable[[int], list[str]], log: Path) -> Iterator[int]:
    """Runs a process that answers HTTP requests on a port, which `command_for` gets and this yields."""
    for again in (True, True, False):  # somebody may take the port between our choice and its use
        port = free_port()
        try:
            process = start(command_for(port), port, log)
            break
        except Ended as ended:
            assert again, str(ended)
    try:
        yield port
    finally:
        end(process)


def start(command: list[str], port: int, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_until(lambda: answers(process, port, log), timeout=180, what=f"{Path(command[0]).name} to answer")
        return process
    except BaseException:
        end(process)
        raise


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def answers(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    said = log.read_text(errors="replace")
    if process.poll() is not None or "Address already in use" in said:  # which does not end all of them
        raise Ended(f"{process.args}:\n{said}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/")
        connection.getresponse()
        return True
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def log_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="outbox-server-") as directory:
        yield Path(directory) / "log"


# -------------------------------------------------------------------------------------------------
# Pub/Sub
# -------------------------------------------------------------------------------------------------


def emulator_jar() -> str | None:
    """Google's emulator, from the package google-cloud-cli-pubsub-emulator."""
    if shutil.which("dpkg") is None:
        return None
    command = ["dpkg", "-L", "google-cloud-cli-pubsub-emulator"]
    files = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return next((name for name in files if name.endswith("-all.jar")), None)


@contextmanager
def pub_sub_emulator() -> Iterator[Server]:
    jar = emulator_jar()
    if jar is None:
        raise NotInstalled("Google's emulator of Pub/Sub is not installed")
    command = [*java(), "-Xmx512m", "-jar", jar, "--host=127.0.0.1"]
    with log_file() as log, running(lambda port: [*command, f"--port={port}"], log) as port:
        yield Server(port, port)


@contextmanager
def pub_sub_fake() -> Iterator[Server]:
    front = INSTALLED / "pstest_front"
    if not front.exists():
        raise NotInstalled(f"there is no {front}")
    with log_file() as log, running(lambda port: [str(front), str(port)], log) as port:
        address = log.read_text().split()[0]
        yield Server(port, int(address.rpartition(":")[2]))


# -------------------------------------------------------------------------------------------------
# Amazon
# -------------------------------------------------------------------------------------------------


@contextmanager
def moto() -> Iterator[Server]:
    if not PYTHON.exists():
        raise NotInstalled(f"there is no {PYTHON}")
    command = [str(PYTHON), str(Path(__file__).with_name("moto_server.py")), "-H", "127.0.0.1", "-p"]
    with log_file() as log, running(lambda port: [*command, str(port)], log) as port:
        yield Server(port)


ELASTICMQ = """
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""


@contextmanager
def elasticmq() -> Iterator[Server]:
    libraries = INSTALLED / "elasticmq"
    if not libraries.exists():
        raise NotInstalled(f"there is no {libraries}")
    with log_file() as log:
        configuration = log.with_name("elasticmq.conf")
        command = [
            *java(), "-Xmx256m", f"-Dconfig.file={configuration}", "-cp", f"{libraries}/*",
            "org.elasticmq.server.Main",
        ]  # fmt: skip

        def command_for(port: int) -> list[str]:
            configuration.write_text(ELASTICMQ.format(port=port))
            return command

        with running(command_for, log) as port:
            yield Server(port)


def java() -> list[str]:
    """Servers of tests live for minutes: the second compiler takes more than it gives."""
    path = shutil.which("java")
    if path is None:
        raise NotInstalled("there is no java")
    return [path, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
