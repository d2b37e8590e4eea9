"""Queues in SQL: PgQ and pgmq, where the server has them."""

from figures.enqueue import tables_of_pgq
from versus.peer import PAYLOAD, LoopInCpp

CHUNK = 10_000  # events between two ticks of PgQ


class PgQ(LoopInCpp):
    kind = "pgq"

    def stage(self) -> None:
        self.bench.need_extension("pgq")

    def prepare(self) -> None:
        self.bench.sql.execute("CREATE EXTENSION pgq")
        self.bench.sql.execute("SELECT pgq.create_queue('bench'), pgq.register_consumer('bench', 'bench')")

    def clear(self) -> None:
        """Goes on from here: the tables rotate by time, which a run is too short for."""
        self.bench.sql.execute("SELECT pgq.unregister_consumer('bench', 'bench')")
        self.bench.sql.execute(f"TRUNCATE {tables_of_pgq(self.bench)}")
        self.bench.sql.execute("SELECT pgq.force_tick('bench')")
        self.bench.sql.execute("SELECT pgq.ticker('bench')")
        self.bench.sql.execute("SELECT pgq.register_consumer('bench', 'bench')")

    def fill(self, events: int) -> None:
        for _ in range(events // CHUNK):
            self.bench.sql.execute(
                "SELECT count(pgq.insert_event('bench', 'AccountChanged', %s)) FROM generate_series(1, %s)",
                [PAYLOAD, CHUNK],
            )
            self.bench.sql.execute("SELECT pgq.force_tick('bench'), pgq.ticker('bench')")

    def tables(self) -> str:
        return "c.relnamespace = 'pgq'::regnamespace"


class Pgmq(LoopInCpp):
    kind = "pgmq"

    def stage(self) -> None:
        self.bench.need_extension("pgmq")

    def prepare(self) -> None:
        self.bench.sql.execute("CREATE EXTENSION pgmq")
        self.bench.sql.execute("SELECT pgmq.create('bench')")

    def clear(self) -> None:
        self.bench.sql.execute("SELECT pgmq.purge_queue('bench')")

    def tables(self) -> str:
        return "c.relname = 'q_bench'"
