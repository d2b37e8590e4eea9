"""Hostile peers at random: python3 tests/security/fuzz/peers.py --seconds 60 --seed 1

Several destinations at a time get peers of random kinds and modes, some of which also change bytes of what they send. Beside
them a healthy destination must go on. It watches the memory of each relay, the growth of the server log, the time a relay
needs to end, and that nothing crashes. It prints its seed, and what it did.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1].parent), str(HERE.parents[2] / "system")]

import psycopg  # noqa: E402
from psycopg import sql  # noqa: E402

from certificates import Certificates, make_certificates  # noqa: E402
from cluster import Cluster, Installation  # noqa: E402
from database import Database, create_database  # noqa: E402
from processes import process_exists  # noqa: E402
from receiver import Receiver  # noqa: E402
from security.peers import (  # noqa: E402
    hostile_cloud,
    hostile_http,
    hostile_kafka,
    hostile_mqtt,
    hostile_nats,
    hostile_postgresql,
    hostile_redis,
    hostile_tls,
)
from security.peers.attack import (  # noqa: E402
    MOST_LOG_A_MINUTE,
    MOST_MEMORY,
    Target,
    assert_harmless,
    peak,
    seconds_to_end,
)  # fmt: skip
from security.peers.peer import Mode, Peer, Session  # noqa: E402
from waiting import SECOND, wait_until  # noqa: E402

AT_A_TIME = 3
PASSWORD = "s3cret-s3cret-1"


def mutating(mode: Mode) -> Mode:
    """Returns the mode with bytes of its messages changed now and then."""

    def changed(session: Session) -> None:
        send, chance = session.send, session.random

        def send_changed(data: bytes) -> None:
            if data and chance.random() < 0.3:
                bytes_ = bytearray(data)
                for _ in range(chance.randint(1, 3)):
                    bytes_[chance.randrange(len(bytes_))] = chance.randrange(256)
                data = bytes(bytes_)
            send(data)

        session.send = send_changed  # type: ignore[method-assign]
        mode(session)

    return changed


class Fuzzer:
    def __init__(self, database: Database, certificates: Certificates, seed: int) -> None:
        self.database = database
        self.kinds = ["http", "https", "postgresql", "mqtt", "pubsub", "sqs", "sns", "kinesis", "eventbridge"]
        if database.cluster.installation.has_module("pg_outbox_kafka"):
            self.kinds.append("kafka")
        if database.cluster.installation.has_module("pg_outbox_nats"):
            self.kinds.append("nats")
        if database.cluster.installation.has_module("pg_outbox_redis"):
            self.kinds.append("redis")
        self.target = Target(database)
        self.certificates = certificates
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.most_memory = 0
        self.slowest_end = 0.0

    def open_peer(self) -> tuple[Peer, str, str, dict[str, str], dict[str, str]]:
        """Returns a peer, its description, its URL, and options of its server and user mapping."""
        chance = self.random
        kind = chance.choice(self.kinds)
        modes = {
            "http": hostile_http.MODES, "https": hostile_tls.MODES, "postgresql": hostile_postgresql.MODES,
            "kafka": hostile_kafka.MODES, "mqtt": hostile_mqtt.MODES, "nats": hostile_nats.MODES,
            "redis": hostile_redis.MODES,
        }.get(kind, hostile_cloud.MODES)  # fmt: skip
        name = chance.choice(sorted(modes))
        mutates = chance.random() < 0.4
        mode = mutating(modes[name]) if mutates else modes[name]
        tls = None
        if kind == "https":
            protocol = "h2" if name in hostile_tls.HTTP2_MODES else "http/1.1"
            tls = hostile_tls.context(self.certificates.certificate, self.certificates.key, protocol)
        peer = Peer(mode, seed=chance.randrange(1 << 30), tls=tls)
        address = f"127.0.0.1:{peer.port}"
        keys = {"access_key_id": "AKIA", "secret_access_key": PASSWORD}
        url, options, mapping = {
            "http": (f"http://{address}/", {"format": chance.choice(["binary", "structured", "batched"])}, {}),
            "https": (f"https://{address}/", {"ca_file": self.certificates.authority}, {}),
            "postgresql": (f"postgresql://{address}/x", {}, {"user": "u", "password": PASSWORD}),
            "pubsub": ("pubsub://p", {"emulator_host": address}, {}),
            "kafka": (f"kafka://{address}", {"sasl_mechanism": "PLAIN"}, {"user": "u", "password": PASSWORD}),
            "mqtt": (f"mqtt://{address}", {"qos": chance.choice(["1", "2"])}, {"user": "u", "password": PASSWORD}),
            "nats": (f"nats://{address}", {}, {"user": "u", "password": PASSWORD}),
            "redis": (f"redis://{address}", {}, {"user": "u", "password": PASSWORD}),
            "sqs": (f"sqs://eu-west-1?endpoint=http://{address}", {}, keys),
            "sns": (f"sns://eu-west-1/123456789012?endpoint=http://{address}", {}, keys),
            "kinesis": (f"kinesis://eu-west-1?endpoint=http://{address}", {}, keys),
            "eventbridge": (f"eventbridge://eu-west-1?endpoint=http://{address}", {}, keys),
        }[kind]
        return peer, f"{kind}: {name}{' (mutated)' if mutates else ''}", url, options, mapping

    def round(self, number: int) -> None:
        attacks = []
        try:
            for i in range(AT_A_TIME):
                peer, what, url, options, mapping = self.open_peer()
                name = f"r{number}_{i}"
                attacks.append((name, what, peer))
                pid = self.target.create(name, url, mapping, **options)
                attacks[-1] = (name, what, peer, pid, peak(pid))  # type: ignore[assignment]
                self.database.enqueue(name, self.random.randint(1, 20), topic=name)
            healthy = self.database.published("healthy") or 0
            self.database.enqueue("h", 10, topic="healthy")
            for name, what, *_ in attacks:
                wait_until(
                    lambda name=name: self.target.tried(name), what=f"an attempt of {what}",
                    ignoring=(psycopg.OperationalError,),
                )  # fmt: skip
            wait_until(lambda: self.database.published("healthy"), lambda seen: seen >= healthy + 10,
                       what="events delivered to the destination that is healthy")  # fmt: skip
            for name, what, _, pid, before in attacks:  # type: ignore[misc]
                assert process_exists(pid), f"{what}: the relay is gone"
                self.most_memory = max(self.most_memory, peak(pid) - before)
                assert peak(pid) - before < MOST_MEMORY, f"{what}: {(peak(pid) - before) >> 20} MiB"
                assert_harmless(self.target.error(name) or "", what)
                seconds = seconds_to_end(pid)
                self.slowest_end = max(self.slowest_end, seconds)
                assert seconds < SECOND, f"{what}: {seconds:.2f} s to end"
                self.done[what.partition(":")[0]] += 1
        finally:
            for name, _, peer, *_ in attacks:
                self.database.execute(sql.SQL("DROP SERVER IF EXISTS {} CASCADE").format(sql.Identifier(name)))
                peer.close()


def fuzz(cluster: Cluster, seconds: float, seed: int, directory: Path) -> str:
    """Returns a report; raises if something went wrong."""
    print(f"seed {seed}", flush=True)
    receiver = Receiver()
    database = create_database(cluster, "fuzzed")
    database.add_destination("healthy", receiver.url(), topics="healthy")
    database.wait_for_worker("relay", "healthy")
    fuzzer = Fuzzer(database, make_certificates(directory), seed)
    log_before, started = cluster.log_size(), time.monotonic()
    number = 0
    try:
        while time.monotonic() - started < seconds:
            number += 1
            fuzzer.round(number)
    finally:
        receiver.close()
    took = time.monotonic() - started
    log = cluster.log_since(log_before)
    assert len(log) < max(1, took / 60) * AT_A_TIME * MOST_LOG_A_MINUTE, f"{len(log)} bytes of log in {took:.0f} s"
    assert_harmless(log, "the server log")
    assert PASSWORD not in log
    assert not cluster.complaints([])
    return (
        f"{number} rounds, {sum(fuzzer.done.values())} attacks ({dict(fuzzer.done)}) in {took:.0f} s; most memory "
        f"{fuzzer.most_memory >> 20} MiB, slowest end {fuzzer.slowest_end:.2f} s, {len(log)} bytes of log"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    installation = Installation()
    cluster = Cluster(installation).start()
    try:
        with tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o755)
            print(fuzz(cluster, arguments.seconds, arguments.seed, Path(directory)))
    finally:
        cluster.destroy()
        installation.remove()


if __name__ == "__main__":
    main()
