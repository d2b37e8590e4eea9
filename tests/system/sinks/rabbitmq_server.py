"""RabbitMQ of the distribution, one node with a name server of its own (epmd).

    port    plain text, and `proxy` is between the relay and it
    tls     TLS; a client may show a certificate, and log in with it

Its users and permissions are in DEFINITIONS.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from certificates import Certificates, make_certificates
from cluster import free_port
from waiting import wait_until

from .fault_proxy import AmqpProxy
from .servers import Ended, NotInstalled, end

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
NODE = "outbox@localhost"
PASSWORD = "s3cret-of-alice"
LARGEST_MESSAGE = 2_000_000

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
DEFINITIONS = {
    "vhosts": [{"name": "/"}, {"name": "a/b"}],
    "users": [
        {"name": "guest", "password": "guest", "tags": "administrator"},
        {"name": "alice", "password": PASSWORD, "tags": ""},
        {"name": "carol", "password": PASSWORD, "tags": ""},
        {"name": "client", "password": "not-used", "tags": ""},
    ],
    "permissions": [
        {"user": "guest", "vhost": "/", **EVERYTHING},
        {"user": "guest", "vhost": "a/b", **EVERYTHING},
        {"user": "carol", "vhost": "/", "configure": "", "write": "^amq\\.default$", "read": ""},
        {"user": "client", "vhost": "/", **EVERYTHING},
        {"user": "alice", "vhost": "/", "configure": "", "write": "^open.*|^amq\\.topic$", "read": ""},
    ],
    "topic_permissions": [{"user": "alice", "vhost": "/", "exchange": "amq.topic", "write": "^open.*", "read": ""}],
}

CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
listeners.ssl.1 = 127.0.0.1:{tls}
ssl_options.cacertfile = {directory}/ca.crt
ssl_options.certfile = {directory}/server.crt
ssl_options.keyfile = {directory}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
loopback_users = none
load_definitions = {directory}/definitions.json
max_message_size = {largest}
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.absolute = 4GB
"""


class RabbitmqServer:
    def __init__(self, directory: Path) -> None:
        if not (SCRIPTS / "rabbitmq-server").exists() or shutil.which("epmd") is None:
            raise NotInstalled("there is no rabbitmq-server")
        try:
            import pika  # noqa: F401
        except ImportError:
            raise NotInstalled("there is no pika (python3-pika)") from None
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        self.directory = directory
        directory.chmod(0o711)  # the server under test reads a certificate in it
        self.certificates: Certificates = make_certificates(directory)
        self.client = self.client_certificate()
        self.port, self.tls, self.names, distribution = (free_port() for _ in range(4))
        self.proxy = AmqpProxy(self.port)
        self.log = directory / "output"
        (directory / "definitions.json").write_text(json.dumps(DEFINITIONS))
        (directory / "rabbitmq.conf").write_text(
            CONFIGURATION.format(port=self.port, tls=self.tls, directory=directory, largest=LARGEST_MESSAGE)
        )
        (directory / "plugins").write_text("[rabbitmq_auth_mechanism_ssl].\n")
        self.environment = {
            **os.environ,
            "HOME": str(directory),  # it has the cookie
            "RUNNING_UNDER_SYSTEMD": "1",  # the script becomes the server, and does not start it
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.names),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.epmd: subprocess.Popen[bytes] | None = None

    def client_certificate(self) -> tuple[str, str]:
        """Texts of a certificate that says "client", and of its key."""

        def openssl(*arguments: str) -> None:
            subprocess.run(["openssl", *arguments], check=True, cwd=self.directory, capture_output=True)

        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-keyout", "client.key", "-out", "client.csr", "-subj", "/CN=client")  # fmt: skip
        openssl("x509", "-req", "-in", "client.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", "client.crt")  # fmt: skip
        return tuple((self.directory / f"client.{kind}").read_text() for kind in ("crt", "key"))  # type: ignore[return-value]

    def spawn(self, *command: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def start(self) -> None:
        if self.epmd is None:
            self.epmd = self.spawn("epmd", "-port", str(self.names), "-address", "127.0.0.1")
            wait_until(lambda: listens(self.names), what="epmd to listen")
        self.process = self.spawn(str(SCRIPTS / "rabbitmq-server"))
        wait_until(self.answers, timeout=180, what="RabbitMQ to answer")

    def answers(self) -> bool:
        import pika

        assert self.process is not None
        if self.process.poll() is not None:
            raise Ended(f"RabbitMQ has ended:\n{self.log.read_text(errors='replace')[-5000:]}")
        if listens(self.port):
            with suppress(pika.exceptions.AMQPError, OSError):
                self.connect().close()
                return True
        return False

    def connect(self, virtual_host: str = "/") -> pika.BlockingConnection:  # type: ignore[name-defined] # noqa: F821
        import pika

        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.port, virtual_host, heartbeat=0, stack_timeout=60)
        )

    def kill(self) -> None:
        assert self.process is not None
        end(self.process)

    def sync(self) -> None:
        """Makes declarations outlive kill(). RabbitMQ writes them to the disk a little later."""
        self.control("eval", "ok = mnesia:sync_log().")

    def control(self, *arguments: str) -> str:
        result = subprocess.run(
            [str(SCRIPTS / "rabbitmqctl"), "-n", NODE, "--quiet", *arguments],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert result.returncode == 0, f"rabbitmqctl {arguments}:\n{result.stdout}"
        return result.stdout

    def messages(self, queue: str) -> int:
        """The number of messages in a queue, also of those that a consumer has."""
        lines = self.control("list_queues", "--no-table-headers", "name", "messages").splitlines()
        return next(int(count) for name, count in (line.split() for line in lines) if name == queue)

    @contextmanager
    def out_of_disk_space(self) -> Iterator[None]:
        """The server has the alarm that it raises when it has no space left."""
        alarm = "{resource_limit, disk, node()}"
        self.control("eval", f"rabbit_alarm:set_alarm({{{alarm}, []}}).")
        try:
            yield
        finally:
            self.control("eval", f"rabbit_alarm:clear_alarm({alarm}).")

    def remove(self) -> None:
        self.proxy.close()
        for process in (self.process, self.epmd):
            if process is not None:
                end(process)


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@contextmanager
def rabbitmq() -> Iterator[RabbitmqServer]:
    directory = Path(tempfile.mkdtemp(prefix="outbox-rabbitmq-"))
    try:
        server = RabbitmqServer(directory)
        try:
            server.start()
            yield server
        finally:
            server.remove()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
