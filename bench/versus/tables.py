"""The relay of an outbox table, as the usual recipe has it: SKIP LOCKED, and NOTIFY or not."""

from figures.enqueue import OUTBOX_TABLE
from versus.peer import LoopInCpp

INSERT = (
    "INSERT INTO app_outbox (id, aggregate_type, aggregate_id, event_type, version, payload) "
    "VALUES (gen_random_uuid(), 'account', {id}, 'AccountChanged', 1, {payload}::text::bytea)"
)


class Table(LoopInCpp):
    kind = "table"

    def prepare(self) -> None:
        if self.bench.sql.execute("SELECT to_regclass('app_outbox')").fetchone()[0] is None:
            self.bench.sql.execute(OUTBOX_TABLE)

    def clear(self) -> None:
        self.bench.sql.execute("TRUNCATE app_outbox")

    def tables(self) -> str:
        return "c.relname = 'app_outbox'"


class NotifiedTable(Table):
    kind = "table-notified"


NOTIFYING = f"WITH event AS ({INSERT}) SELECT pg_notify('app_outbox', '')"
