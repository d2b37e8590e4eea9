"""Events of a coordinator and two workers of Citus, all on this machine, against one server with as many clients.

A transaction enqueues one event, and a relay of the same node delivers it to null:. Nodes share the processors and the disk,
so three of them cannot do more than one server; what they lose against it is what they do for each other. Clients are
connected to the node of their keys, or to the coordinator, which sends each call of a distributed function to its node.
Measured where the server has Citus.
"""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from cluster import Cluster
from figures.drain_http import free_port
from report import Figure, Goal
from workload import KEYS, Bench, payload, wait_until

CLIENTS = 12
WORKERS = 2
GOAL = Goal(0.9, 1.0)
HOST = "127.0.0.1"

ENQUEUE = "SELECT outbox.enqueue('account', :id::text, 'AccountChanged', :payload::jsonb, 1);\n"
PLACE = "SELECT place(:id, :payload);\n"

DISTRIBUTED = [
    "CREATE TABLE owner (id int PRIMARY KEY)",
    "SELECT create_distributed_table('owner', 'id')",
    # Not in SQL: that would be inlined, and run on the coordinator.
    "CREATE FUNCTION place(id int, payload jsonb) RETURNS uuid LANGUAGE plpgsql AS "
    "$$ BEGIN RETURN outbox.enqueue('account', id::text, 'AccountChanged', payload, 1); END $$",
    "SELECT create_distributed_function('place(int,jsonb)', 'id', colocate_with => 'owner', force_delegation => true)",
]


class Node(Bench):
    def install(self) -> None:
        self.sql.execute("CREATE EXTENSION citus")
        self.sql.execute("CREATE EXTENSION pg_outbox")

    @property
    def port(self) -> str:
        return self.cluster.settings["port"]


@contextmanager
def run_nodes(bench: Bench) -> Iterator[list[Node]]:
    """Runs a coordinator, which is the first, and workers."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(1 + WORKERS):
            settings = {
                "listen_addresses": HOST, "port": str(free_port()), "shared_buffers": "128MB",
                "max_prepared_transactions": "100", "citus.node_conninfo": "sslmode=disable",
            }  # fmt: skip
            cluster = stack.enter_context(Cluster(bench.cluster.build, settings, ["citus"]))
            nodes.append(Node(cluster, bench.programs, bench.quick))
        sql = nodes[0].sql
        sql.execute("SELECT citus_set_coordinator_host(%s, %s)", [HOST, int(nodes[0].port)])
        for node in nodes[1:]:
            sql.execute("SELECT citus_add_node(%s, %s)", [HOST, int(node.port)])
        for statement in DISTRIBUTED:
            sql.execute(statement)
        for node in nodes:
            node.touch_memory()
        yield nodes


def run_clients(bench: Bench, statement: str, clients: int, seconds: int) -> int:
    """Returns the number of transactions."""
    script = bench.cluster.root / "citus.sql"
    script.write_text(f"\\set id random(1, {KEYS})\n{statement}")
    report = bench.pgbench(
        [
            "-M",
            "prepared",
            "-c",
            str(clients),
            "-j",
            "1",
            "-T",
            str(seconds),
            "-D",
            f"payload={payload()}",
            "-f",
            script,
        ]
    )
    return int(re.search(r"actually processed: (\d+)", report).group(1))


def events_per_second(at: list[Bench], nodes: list[Bench], statement: str, seconds: int) -> float:
    """Runs clients at some of the nodes at once; their time ends when all events are delivered."""
    for bench in nodes:
        bench.sql.execute("CHECKPOINT")
    start = time.monotonic()
    with ThreadPoolExecutor(len(at)) as pool:
        events = sum(pool.map(lambda bench: run_clients(bench, statement, CLIENTS // len(at), seconds), at))
    wait_until(
        lambda: sum(bench.delivered() for bench in nodes) >= events, 30, f"{events} events are delivered", pause=0.005
    )
    return events / (time.monotonic() - start)


@contextmanager
def relays_to_null(coordinator: Bench, nodes: list[Bench]) -> Iterator[None]:
    for node in nodes:
        node.clear_log()
    with coordinator.destination("null:"):
        for node in nodes:
            wait_until(lambda: (node.status() or {}).get("state") == "idle", 30, "the relay is idle")
        yield
    for node in nodes:
        wait_until(lambda: node.relay_pid() is None, 10, "the relay has ended")


def measure(bench: Bench) -> Figure:
    bench.need_extension("citus")
    rounds, seconds = (3, 4) if bench.quick else (7, 8)
    bench.touch_memory()
    rates: dict[str, list[float]] = {
        "one server": [],
        "clients at the node of their keys": [],
        "clients at the coordinator": [],
    }
    with run_nodes(bench) as nodes:
        coordinator = nodes[0]

        def one_server() -> float:
            with relays_to_null(bench, [bench]):
                return events_per_second([bench], [bench], ENQUEUE, seconds)

        def each_node() -> float:
            with relays_to_null(coordinator, nodes):
                return events_per_second(nodes, nodes, ENQUEUE, seconds)

        def through_coordinator() -> float:
            with relays_to_null(coordinator, nodes):
                rate = events_per_second([coordinator], nodes, PLACE, seconds)
                if coordinator.delivered() > 0:
                    raise RuntimeError("the coordinator has run functions that it should have sent on")
                return rate

        kinds = dict(zip(rates, (one_server, each_node, through_coordinator)))
        for turn in range(rounds):
            for label, run in kinds.items():
                rates[label].append(bench.undisturbed(run))
            bench.say(
                f"round {turn + 1} of {rounds}: "
                + ", ".join(f"{label} {values[-1]:,.0f}/s" for label, values in rates.items())
            )

    alone, *clusters = rates
    figure = Figure(
        "citus",
        f"Events of a coordinator and {WORKERS} workers of Citus on one machine, enqueued and delivered to null:",
    )
    for label in clusters:
        ratios = [rate / single for rate, single in zip(rates[label], rates[alone])]
        figure.add(label, ratios, "of one server", GOAL if label == clusters[0] else None)
    for label, values in rates.items():
        figure.add(label, values, "events/s")
    figure.add(
        "clients at the node of their keys, a node", [rate / (1 + WORKERS) for rate in rates[clusters[0]]], "events/s"
    )
    figure.notes = [
        f"{CLIENTS} clients in all, payload of 512 bytes, {rounds} rounds of {seconds} s, a transaction an event; "
        "nodes share processors and disk",
        bench.disturbances(),
    ]
    return figure
