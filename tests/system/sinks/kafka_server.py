"""Apache Kafka in one process, with listeners for all that a client can be asked to show.

    direct     plain text, for the tests themselves
    proxied    plain text; clients are told to come by way of `proxy`
    tls        TLS
    mutual     TLS, with a certificate of the client
    sasl       plain text with a login
    oauth      plain text with a token of an issuer (token_issuer.py)
    sessions   the same, and the broker ends each connection after a while
    msk        plain text with a token that AWS keys have signed

Anonymous clients may do anything; access lists bind users that log in.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from certificates import Certificates, make_certificates
from cluster import REPOSITORY, free_port
from waiting import wait_until

from .fault_proxy import KafkaProxy
from .servers import INSTALLED, Ended, NotInstalled, end, java
from .token_issuer import ISSUER, SigningKey

USERS = {"alice": "s3cret-of-alice", "bob": "s3cret-of-bob"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

TOKENS = "org.apache.kafka.common.security.oauthbearer"
MSK_KEY = ("AKIAEXAMPLE", "s3cret+of/AKIAEXAMPLE")

CONFIGURATION = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=DIRECT
listeners=CONTROLLER://127.0.0.1:{controller},DIRECT://127.0.0.1:{direct},PROXIED://127.0.0.1:{proxied},\
TLS://127.0.0.1:{tls},MUTUAL://127.0.0.1:{mutual},SASL://127.0.0.1:{sasl},OAUTH://127.0.0.1:{oauth},\
SESSIONS://127.0.0.1:{sessions},MSK://127.0.0.1:{msk}
advertised.listeners=DIRECT://127.0.0.1:{direct},PROXIED://127.0.0.1:{proxy},TLS://127.0.0.1:{tls},\
MUTUAL://127.0.0.1:{mutual},SASL://127.0.0.1:{sasl},OAUTH://127.0.0.1:{oauth},\
SESSIONS://127.0.0.1:{sessions},MSK://127.0.0.1:{msk}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,DIRECT:PLAINTEXT,PROXIED:PLAINTEXT,TLS:SSL,MUTUAL:SSL,\
SASL:SASL_PLAINTEXT,OAUTH:SASL_PLAINTEXT,SESSIONS:SASL_PLAINTEXT,MSK:SASL_PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={directory}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={directory}/ca.crt
listener.name.mutual.ssl.client.auth=required
listener.name.sasl.sasl.enabled.mechanisms={mechanisms}
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth.oauthbearer.sasl.jaas.config={token_module};
listener.name.oauth.oauthbearer.sasl.server.callback.handler.class={token_validator}
listener.name.oauth.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={jwks}
listener.name.oauth.oauthbearer.sasl.oauthbearer.expected.issuer={issuer}
listener.name.sessions.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.sessions.oauthbearer.sasl.jaas.config={token_module};
listener.name.sessions.oauthbearer.sasl.server.callback.handler.class={token_validator}
listener.name.sessions.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={jwks}
listener.name.sessions.oauthbearer.sasl.oauthbearer.expected.issuer={issuer}
listener.name.sessions.oauthbearer.connections.max.reauth.ms=2000
sasl.oauthbearer.jwt.validator.class={tokens}.BrokerJwtValidator
listener.name.msk.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.msk.oauthbearer.sasl.jaas.config={token_module} {msk_keys};
listener.name.msk.oauthbearer.sasl.server.callback.handler.class=MskTokens
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
auto.create.topics.enable=false
group.min.session.timeout.ms=1000
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.dirs={directory}/data
"""


PORTS = ("controller", "direct", "proxied", "tls", "mutual", "sasl", "oauth", "sessions", "msk")


def compile_java(source: Path, libraries: Path, classes: Path) -> None:
    compiler = shutil.which("javac")
    if compiler is None:
        raise NotInstalled("there is no javac")
    command = [compiler, "-cp", f"{libraries}/*", "-d", str(classes), str(source)]
    subprocess.run(command, check=True, capture_output=True)


class KafkaServer:
    """`proxy` is between the relay and the broker."""

    def __init__(self, directory: Path, make_proxy: type[KafkaProxy] = KafkaProxy) -> None:
        libraries = INSTALLED / os.environ.get("OUTBOX_TEST_KAFKA", "kafka")
        if not libraries.exists():
            raise NotInstalled(f"there is no {libraries}")
        self.directory = directory
        self.key = SigningKey(directory)
        jwks = self.key.jwks.as_uri()
        self.java = [*java(), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                     f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks}",
                     "-cp", f"{libraries}/*:{directory}/classes"]  # fmt: skip
        compile_java(REPOSITORY / "tests/kafka/MskTokens.java", libraries, directory / "classes")
        self.log = directory / "log"
        self.certificates: Certificates = make_certificates(directory)
        pem = Path(self.certificates.key).read_text() + Path(self.certificates.certificate).read_text()
        (directory / "server.pem").write_text(pem)
        self.ports = {name: free_port() for name in PORTS}
        self.proxy = make_proxy(self.ports["proxied"])
        self.process: subprocess.Popen[bytes] | None = None
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        self.configuration = directory / "server.properties"
        self.configuration.write_text(
            CONFIGURATION.format(
                **self.ports, proxy=self.proxy.port, directory=directory, users=users,
                mechanisms=",".join(MECHANISMS), token_module=f"{TOKENS}.OAuthBearerLoginModule required",
                token_validator=f"{TOKENS}.OAuthBearerValidatorCallbackHandler", tokens=TOKENS, jwks=jwks, issuer=ISSUER,
                msk_keys=f'unsecuredLoginStringClaim_sub="broker" id="{MSK_KEY[0]}" secret="{MSK_KEY[1]}"',
            )
        )  # fmt: skip
        scram = [
            f"--add-scram={mechanism}=[name={name},password={password}]"
            for mechanism in MECHANISMS[1:]
            for name, password in USERS.items()
        ]
        self.run("kafka.tools.StorageTool", "format", "-t", "outboxoutboxoutboxoutb", "-c",
                 str(self.configuration), *scram)  # fmt: skip

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['direct']}"

    def run(self, tool: str, *arguments: str) -> str:
        result = subprocess.run(
            [*self.java, tool, *arguments], cwd=self.directory, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert result.returncode == 0, f"{tool}:\n{result.stdout}"
        return result.stdout

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.java, "kafka.Kafka", str(self.configuration)],
                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        wait_until(self.answers, timeout=180, what="Kafka to answer")

    def answers(self) -> bool:
        """A broker that has just bound its listeners may name no controller yet, and a client that
        was told so does not ask again for minutes; so the one that asks here is thrown away.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self.process is not None
        if self.process.poll() is not None:
            raise Ended(f"Kafka has ended:\n{self.log.read_text(errors='replace')[-5000:]}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports["direct"]), timeout=5):
            with suppress(KafkaException):
                client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
                seen = client.list_topics(timeout=5)
                return seen.controller_id == 1 and 1 in seen.brokers
        return False

    def kill(self) -> None:
        assert self.process is not None
        end(self.process)

    def remove(self) -> None:
        self.proxy.close()
        if self.process is not None:
            self.kill()


@contextmanager
def kafka(make_proxy: type[KafkaProxy] = KafkaProxy) -> Iterator[KafkaServer]:
    directory = Path(tempfile.mkdtemp(prefix="outbox-kafka-"))
    try:
        server = KafkaServer(directory, make_proxy)
        try:
            server.start()
            yield server
        finally:
            server.remove()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
