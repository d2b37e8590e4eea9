"""The postgresql sink: the inbox of another database of the same server, through its TCP port."""

from __future__ import annotations

from database import Database

from .fault_proxy import TcpProxy
from .sink import Message, Sink, as_text

ONE_CONNECTION = "one connection, on which transactions go one after the other"


class PostgresqlSink(Sink):
    name = "postgresql"
    module = "pg_outbox_postgresql"
    cannot = {
        "requests": "the proxy does not read the protocol",
        "parallel": ONE_CONNECTION,
        "batches": ONE_CONNECTION,
        "partial": "a transaction is all or nothing",
        "throttling": "the protocol has no such answer",
        "limits": "an event of any size that the log takes fits",
        "secrets": "passwords are in test_privileges.py: this server asks for none",
        "topics": "an inbox takes all of them",
    }
    deduplicates = True
    proxy: TcpProxy

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        cluster = database.cluster
        self.inbox = Database(cluster, f"{database.name}_inbox")
        cluster.execute(f"CREATE DATABASE {self.inbox.name}")
        self.inbox.execute("CREATE EXTENSION pg_inbox")
        self.proxy = TcpProxy(cluster.port)
        self._received = 0

    def url(self) -> str:
        return self.inbox.inbox_url(f"127.0.0.1:{self.proxy.port}")

    def receive(self) -> list[Message]:
        rows = self.inbox.execute(
            "SELECT seq, event_id::text, event_type, aggregate_type, aggregate_id, version, "
            "schema_version, occurred_at, content_type, ordering_key, coalesce(headers, '{}'), payload "
            "FROM inbox.message WHERE seq > %s ORDER BY seq",
            (self._received,),
        )
        self._received = rows[-1][0] if rows else self._received
        return [Message(*row[1:10], {name: as_text(v) for name, v in row[10].items()}, row[11]) for row in rows]

    def as_carried(self, message: Message) -> Message:
        return message

    def close(self) -> None:
        super().close()
        self.inbox.disconnect()
        self.database.cluster.execute(f"DROP DATABASE IF EXISTS {self.inbox.name} WITH (FORCE)")
