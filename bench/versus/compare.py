"""Measures all peers, in turns, and reports one table and one plot: see README.md."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg

from cluster import Cluster
from debezium import SETTINGS as FOR_DEBEZIUM
from figures.enqueue import run_script
from figures.held_snapshot import dead_tuples, held_snapshot
from figures.ulak import PRELOAD
from figures.ulak import SETTINGS as FOR_ULAK
from figures.wal import position_of_wal
from outbox_relay import native_edition, sql_edition
from versus import debezium, jobs, ours, queues, tables, ulak
from versus.peer import CHANGE, PAYLOAD, RATE, SESSIONS, Peer
from workload import ACCOUNTS, Bench, Unavailable, wait_until

DEBEZIUM = "https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html"
ENQUEUE = "SELECT outbox.enqueue('account', {id}, 'AccountChanged', {payload}::jsonb, 1)"


def peers(bench: Bench) -> list[Callable[[], Peer]]:
    def native() -> Peer:
        return ours.Native("pg_outbox", "docs/settings.md", ENQUEUE, bench, backlog=1_000_000)

    def outside() -> Peer:
        return ours.Outside(
            "pg_outbox, outbox-relay", "docs/outbox-relay.md", ENQUEUE, native_edition(bench), backlog=500_000
        )

    def edition() -> Peer:
        return ours.Outside("pg_outbox, SQL edition", "docs/editions.md", ENQUEUE, sql_edition(bench), backlog=500_000)

    return [
        native,
        outside,
        edition,
        lambda: tables.Table(
            "outbox table, SKIP LOCKED",
            "https://docs.aws.amazon.com/prescriptive-guidance/latest/cloud-design-patterns/transactional-outbox.html",
            tables.INSERT,
            bench,
            ["a claim of 200 rows, marked in one statement; polls ten times a second"],
            100_000,
        ),
        lambda: tables.NotifiedTable(
            "outbox table and NOTIFY",
            "https://www.postgresql.org/docs/15/sql-notify.html",
            tables.NOTIFYING,
            bench,
            ["the same, woken"],
            100_000,
        ),
        lambda: queues.PgQ(
            "PgQ",
            "https://github.com/pgq/pgqd#configuration",
            "SELECT pgq.insert_event('bench', 'AccountChanged', {payload}::text)",
            bench,
            [
                "batches of 10,000 in the drain; the ticker is called ten times a second while there is no batch, with its default limits"
            ],
            500_000,
        ),
        lambda: queues.Pgmq(
            "pgmq",
            "https://pgmq.github.io/pgmq/api/sql/functions/",
            "SELECT pgmq.send('bench', {payload}::text::jsonb)",
            bench,
            ["read_with_poll of 100 messages, deleted in one call"],
            100_000,
        ),
        lambda: debezium.Engine(
            "Debezium, outbox table", DEBEZIUM, tables.INSERT, bench, ["poll.interval.ms 500, the default"], 200_000
        ),
        lambda: debezium.Engine(
            "Debezium, WAL messages",
            "https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-message-events",
            "SELECT pg_logical_emit_message(true, 'outbox', {payload}::text)",
            bench,
            ["poll.interval.ms 500, the default"],
            200_000,
            options=debezium.MESSAGES,
        ),
        lambda: jobs.Graphile(
            "Graphile Worker",
            "https://worker.graphile.org/docs/performance",
            "SELECT graphile_worker.add_job('deliver', {payload}::text::json)",
            bench,
            ["24 jobs at a time, local queue of 500, batched completion"],
            100_000,
        ),
        lambda: jobs.River(
            "River",
            "https://riverqueue.com/docs/maintenance-services",
            "INSERT INTO river_job (args, kind, max_attempts) VALUES ({payload}::text::jsonb, 'deliver', 25)",
            bench,
            ["1,000 workers, fifty looks a second, as in its own benchmark; inserts by SQL notify nobody"],
            100_000,
        ),
        lambda: ulak.Ulak(
            "ulak",
            "https://github.com/zeybek/ulak",
            "SELECT ulak.send('peer', {payload}::text::jsonb)",
            bench,
            ["delivers to nginx, one request a message; four workers, 200 messages a batch"],
            10_000,
        ),
    ]


@dataclass
class Column:
    """A figure of each peer."""

    title: str
    unit: str
    measure: Callable[[Peer], float]
    less_is_better: bool = False


class Comparison:
    def __init__(self, bench: Bench, rounds: int | None) -> None:
        self.bench = bench
        self.rounds = rounds or (1 if bench.quick else 5)
        self.seconds = 3 if bench.quick else 5
        self.peers: list[Peer] = []
        self.missing: dict[str, str] = {}
        self.samples: dict[str, dict[str, list[float]]] = {}  # by peer, by column
        self.memory: dict[str, float] = {}
        self.p99: dict[str, float] = {}
        self.dead: dict[str, int] = {}
        self.columns = [
            Column("enqueue", "of an empty SELECT", self.enqueue),
            Column("drain", "events/s", self.drain),
            Column("one in a hundred failing", "of the rate without", lambda peer: peer.goodput(peer.backlog // 2)),
            Column("memory", "MiB", lambda peer: self.memory[peer.name], less_is_better=True),
            Column("p50", "ms", self.latency, less_is_better=True),
            Column("p99", "ms", lambda peer: self.p99[peer.name], less_is_better=True),
            Column("WAL", "bytes an event", self.wal, less_is_better=True),
            Column("held snapshot", "of the rate without", self.held),
            Column("dead tuples", "under it", lambda peer: self.dead[peer.name], less_is_better=True),
        ]

    # -- figures ------------------------------------------------------------------------------

    def slice(self, peer: Peer, statement: str) -> float:
        change = CHANGE.format(id=":id")
        return run_script(peer.bench, f"BEGIN;\n{change};\n{statement};\nEND;\n", self.seconds, PAYLOAD).rate

    def enqueue(self, peer: Peer) -> float:
        """Nobody consumes; the baseline before and after, in the same database."""
        peer.clear()
        before = self.slice(peer, "SELECT")
        here = self.slice(peer, peer.call.format(id=":id::text", payload=":payload"))
        after = self.slice(peer, "SELECT")
        peer.clear()
        return here / ((before + after) / 2)

    def drain(self, peer: Peer) -> float:
        rate, self.memory[peer.name] = peer.drain(peer.backlog)
        peer.clear()
        return rate

    def latency(self, peer: Peer) -> float:
        result = peer.latency(5 if self.bench.quick else 15)
        self.p99[peer.name] = result["since_commit_sent"]["p99"] / 1000
        if result["missing"]:
            peer.notes.append(f"{result['missing']} events had not arrived some seconds after the last commit")
        peer.clear()
        return result["since_commit_sent"]["p50"] / 1000

    def wal(self, peer: Peer) -> float:
        """Bytes of WAL from the first commit until all events are consumed; each has a transaction."""
        events = 10_000 if self.bench.quick else 40_000
        peer.clear()
        with peer.deliver() as consumer:
            peer.bench.sql.execute("CHECKPOINT")
            before = position_of_wal(self.bench)
            self.commit(peer, ["-c", "8", "-j", "2", "-t", str(events // 8)])
            wait_until(lambda: consumer.count() >= events, 120, f"{peer.name} has consumed {events} events")
            time.sleep(1)  # for what follows: marks, cursors, tables that are emptied
            used = position_of_wal(self.bench) - before
        peer.clear()
        return used / events

    def commit(self, peer: Peer, arguments: list[str]) -> int:
        """Returns the number of events."""
        script = self.bench.cluster.root / "commit.sql"
        script.write_text(
            f"\\set id random(1, {ACCOUNTS})\n" + peer.call.format(id=":id::text", payload=":payload") + ";\n"
        )
        report = peer.bench.pgbench(["-M", "prepared", "-D", f"payload={PAYLOAD}", "-f", script, *arguments])
        return int(re.search(r"actually processed: (\d+)", report).group(1))

    def held(self, peer: Peer) -> float:
        """The rate at which it delivers a steady stream while a snapshot is held, over that without."""
        return self.steady(peer, hold=True) / self.steady(peer, hold=False)

    def steady(self, peer: Peer, hold: bool) -> float:
        rate, seconds = 2 * RATE, 10 if self.bench.quick else 60
        peer.clear()
        with peer.deliver() as consumer, held_snapshot(peer.bench) if hold else nullcontext():
            start = time.monotonic()
            events = self.commit(peer, ["-c", str(SESSIONS), "-j", "2", "-R", str(rate), "-T", str(seconds)])
            end = time.monotonic() + seconds
            while consumer.count() < events and time.monotonic() < end:
                time.sleep(0.05)
            delivered = consumer.count() / (time.monotonic() - start)
            if hold:
                self.dead[peer.name] = dead_tuples(peer.bench, peer.tables())
        peer.clear()
        return delivered

    # -- all of them --------------------------------------------------------------------------

    def prepare(self, wanted: list[str]) -> None:
        for make in peers(self.bench):
            peer = make()
            if wanted and peer.name not in wanted and peer.name.split(",")[0] not in wanted:
                continue
            try:
                peer.stage()
                peer.bench.sql.execute("CREATE EXTENSION IF NOT EXISTS pgstattuple")
                peer.prepare()
            except (Unavailable, psycopg.Error, subprocess.SubprocessError) as error:
                self.missing[peer.name] = str(error)
                continue
            self.peers.append(peer)

    def run(self, after_round: Callable[[int], None]) -> None:
        with ExitStack() as stack:
            for peer in self.peers:
                stack.enter_context(peer.running())
            self.all_rounds(after_round)

    def all_rounds(self, after_round: Callable[[int], None]) -> None:
        for turn in range(self.rounds):
            for peer in self.peers if turn % 2 == 0 else reversed(self.peers):
                self.bench.sql.execute("CHECKPOINT")
                for by_product in (self.memory, self.p99, self.dead):
                    by_product.pop(peer.name, None)
                for column in self.columns:
                    self.measure(peer, column)
                print(
                    f"    round {turn + 1} of {self.rounds}: {peer.name}: "
                    + ", ".join(
                        f"{title} {values[-1]:,.3g}" for title, values in self.samples.get(peer.name, {}).items()
                    ),
                    flush=True,
                )
            after_round(turn + 1)

    def measure(self, peer: Peer, column: Column) -> None:
        try:
            value = column.measure(peer)
        except Unavailable as why:
            peer.notes.append(f"{column.title} not measured: {why}")
            return
        except (RuntimeError, KeyError, psycopg.Error, subprocess.SubprocessError) as error:
            print(f"    {peer.name}, {column.title}: {str(error)[-300:]}", flush=True)
            return
        self.samples.setdefault(peer.name, {}).setdefault(column.title, []).append(value)


# -- the report -------------------------------------------------------------------------------


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(comparison: Comparison) -> str:
    columns = comparison.columns
    lines = [
        "| | " + " | ".join(f"{column.title}, {column.unit}" for column in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for peer in comparison.peers:
        of_peer = comparison.samples.get(peer.name, {})
        cells = [shown(median(of_peer[column.title])) if column.title in of_peer else "–" for column in columns]
        lines.append(f"| {peer.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def where_peers_are_better(comparison: Comparison) -> list[str]:
    lines = []
    for column in comparison.columns:
        values = {
            peer.name: median(comparison.samples[peer.name][column.title])
            for peer in comparison.peers
            if column.title in comparison.samples.get(peer.name, {})
        }
        own = values.get("pg_outbox")
        if own is None:
            continue
        better = {
            name: value
            for name, value in values.items()
            if not name.startswith("pg_outbox") and (value < own if column.less_is_better else value > own)
        }
        if better:
            lines.append(
                f"{column.title}: "
                + ", ".join(f"{name} {shown(value)}" for name, value in better.items())
                + f"; pg_outbox {shown(own)}"
            )
    return lines


def plot(comparison: Comparison, path: Path) -> None:
    """A panel for each figure, a bar for each peer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = comparison.columns
    page, panels = pyplot.subplots(2, (len(columns) + 1) // 2, figsize=(18, 9), squeeze=False)
    for column, panel in zip(columns, panels.flat):
        measured = [
            (peer.name, comparison.samples[peer.name][column.title])
            for peer in comparison.peers
            if column.title in comparison.samples.get(peer.name, {})
        ]
        values = [median(samples) for _, samples in measured]
        colors = ["tab:blue" if name.startswith("pg_outbox") else "0.7" for name, _ in measured]
        panel.barh(range(len(values)), values, color=colors)
        for i, value in enumerate(values):
            panel.annotate(f" {shown(value)}", (max(value, 0), i), va="center", fontsize=7)
        panel.set_yticks(range(len(values)), [name for name, _ in measured], fontsize=7)
        panel.invert_yaxis()
        if values and max(values) > 50 * max(min(values), 1e-9):
            panel.set_xscale("symlog", linthresh=max(min(value for value in values if value > 0), 1e-3))
        panel.margins(x=0.15)
        better = "less" if column.less_is_better else "more"
        panel.set_title(f"{column.title}\n{column.unit} ({better} is better)", fontsize=9, loc="left")
    for panel in panels.flat[len(columns) :]:
        panel.axis("off")
    page.tight_layout()
    page.savefig(path, dpi=110)
    pyplot.close(page)


def write(comparison: Comparison, output: Path, header: dict) -> None:
    """After each round: a run of hours may be ended."""
    (output / "versus.json").write_text(
        json.dumps(
            header
            | {
                "peers": {
                    peer.name: {
                        "settings": peer.settings,
                        "notes": peer.notes,
                        "samples": comparison.samples.get(peer.name, {}),
                    }
                    for peer in comparison.peers
                },
                "missing": comparison.missing,
            },
            indent=2,
        )
        + "\n"
    )
    plot(comparison, output / "versus.png")


def main(build: Path, quick: bool, rounds: int | None, wanted: list[str], header: dict) -> None:
    settings = FOR_DEBEZIUM | FOR_ULAK | {"max_worker_processes": "32"}
    output = build / "bench"
    with Cluster(build, settings, PRELOAD) as cluster:
        bench = Bench(cluster, output, quick)
        comparison = Comparison(bench, rounds)
        comparison.prepare(wanted)
        bench.touch_memory()
        comparison.run(lambda rounds: write(comparison, output, header | {"rounds": rounds}))
    text = table(comparison)
    print(f"\n{text}\n")
    for line in where_peers_are_better(comparison):
        print(f"  better than pg_outbox: {line}")
    for peer in comparison.peers:
        print(
            f"  {peer.name}: settings as in {peer.settings}"
            + "".join(f"; {note}" for note in dict.fromkeys(peer.notes))
        )
    for name, why in comparison.missing.items():
        print(f"  NOT MEASURED: {name}: {why}")
    print(f"\nWritten: {output}/versus.json, {output}/versus.png")
