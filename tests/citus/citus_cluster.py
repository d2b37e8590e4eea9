"""A Citus cluster of the tests: a coordinator and workers, each a server of its own with pg_outbox, on one machine.

`CitusInstallation` is for a server that has Citus: a package has installed it. `CitusServers` are the running servers;
`Citus` is one database that all of them have, with the nodes that Citus knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster import Cluster, Installation, run
from database import Database

HOST = "127.0.0.1"

# Servers without TLS; few shards, so that tables are made soon; moves without blocking writes copy a table by logical
# replication.
SETTINGS: Mapping[str, str] = {
    "citus.node_conninfo": "sslmode=disable",
    "citus.shard_count": "4",
    "citus.enable_statistics_collection": "off",
    "max_connections": "120",
    "wal_level": "logical",
}

EXTENSIONS = ("citus", "pg_outbox")


class CitusInstallation(Installation):
    """The build, and settings with which Citus is loaded before it."""

    def __init__(self) -> None:
        super().__init__()
        self.settings["shared_preload_libraries"] = f"citus,{self.settings['shared_preload_libraries']}"
        # Citus splits shards with an output plugin of its own. Servers with this setting allow those that it names.
        if self.has_setting("output_plugin_libraries"):
            self.settings["output_plugin_libraries"] = "pgoutput, test_decoding, citus"

    def has_citus(self) -> bool:
        return Path(self.ask("--sharedir"), "extension/citus.control").exists()

    def has_setting(self, name: str) -> bool:
        described = run([str(self.bin_directory / "postgres"), "--describe-config"])
        return any(line.split("\t")[0] == name for line in described.split("\n"))


class Node(Database):
    """A database of one server, which is a node of a Citus cluster."""

    @property
    def port(self) -> int:
        return self.cluster.port

    @property
    def group(self) -> int:
        """The group of the node: 0 on the coordinator."""
        return self.value("SELECT groupid FROM pg_dist_local_group")

    def create_extensions(self, *names: str) -> None:
        for name in names:
            self.execute(f"CREATE EXTENSION {name}")

    def execute_here(self, *statements: str) -> None:
        """Runs DDL on this node only, also of shards."""
        with self.connect() as connection:
            connection.execute("SET citus.enable_ddl_propagation = off")
            connection.execute("SET citus.enable_manual_changes_to_shards = on")
            for statement in statements:
                connection.execute(statement)

    def destinations(self) -> list[str]:
        return [name for (name,) in self.execute("SELECT destination::text FROM outbox.status ORDER BY 1")]

    def event_ids(self) -> list[str]:
        """Returns the ids of all events in the node's log, in order of position."""
        return [str(id) for (id,) in self.execute("SELECT event_id FROM outbox.event ORDER BY position")]


class CitusServers:
    """The first server is for coordinators."""

    def __init__(
        self, installation: CitusInstallation, settings: Mapping[str, str] | None = None, *, workers: int = 2
    ) -> None:
        self.clusters = [
            Cluster(installation, {**SETTINGS, **(settings or {})}).start() for _ in range(1 + workers)
        ]  # fmt: skip

    def destroy(self) -> None:
        for cluster in self.clusters:
            cluster.destroy()


class Citus:
    """A database on servers, and what tests do with its nodes. `workers`: how many the coordinator knows at first."""

    def __init__(
        self,
        servers: Sequence[Cluster],
        name: str,
        *,
        extensions: Sequence[str] = EXTENSIONS,
        workers: int | None = None,
    ) -> None:
        self.name = name
        self.all_nodes = [Node(cluster, name) for cluster in servers]  # also those that are not added yet
        self.coordinator = self.all_nodes[0]
        self.workers: list[Node] = []
        for node in self.all_nodes:
            node.cluster.execute(f"CREATE DATABASE {name}")
            node.create_extensions(*extensions)
        self.coordinator.execute("SELECT citus_set_coordinator_host(%s, %s)", (HOST, self.coordinator.port))
        for node in self.all_nodes[1:][:workers]:
            self.add(node)

    def add(self, node: Node) -> None:
        """Makes the server a worker."""
        self.coordinator.execute("SELECT citus_add_node(%s, %s)", (HOST, node.port))
        self.workers.append(node)

    @property
    def nodes(self) -> list[Node]:
        return [self.coordinator, *self.workers]

    def on_all(self, statement: str, parameters: tuple[object, ...] = ()) -> list[list[tuple]]:
        """Runs a statement on each node, over its own connection; returns the rows of each."""
        return [node.execute(statement, parameters) for node in self.nodes]

    # ---- shards ---------------------------------------------------------------------------------

    def create_distributed_table(self, table: str, columns: str, by: str, **options: str) -> None:
        self.coordinator.execute(f"CREATE TABLE {table} ({columns})")
        pairs = "".join(f", {key} => '{value}'" for key, value in options.items())
        self.coordinator.execute(f"SELECT create_distributed_table('{table}', '{by}'{pairs})")

    def shard_id(self, table: str, key: object) -> int:
        return self.coordinator.value("SELECT get_shard_id_for_distribution_column(%s, %s::text)", (table, str(key)))

    def shard_name(self, table: str, key: object) -> str:
        """Returns the name of the table on the node."""
        return self.coordinator.value("SELECT shard_name(%s::regclass, %s)", (table, self.shard_id(table, key)))

    def shard_node(self, table: str, key: object) -> Node:
        """Returns the node where the rows of a key are."""
        group = self.coordinator.value(
            "SELECT groupid FROM pg_dist_placement WHERE shardid = %s", (self.shard_id(table, key),)
        )
        return next(node for node in self.nodes if node.group == group)

    def key_on(self, table: str, node: Node, *, other_than: Sequence[int] = ()) -> int:
        """Returns an integer key whose rows are on the node."""
        return next(key for key in range(1, 10_000) if key not in other_than and self.shard_node(table, key) is node)

    def move_command(self, table: str, key: object, to: Node, mode: str = "auto") -> str:
        """Returns the statement that moves the shard of a key, and those colocated with it."""
        source = self.shard_node(table, key)
        return (
            f"SELECT citus_move_shard_placement({self.shard_id(table, key)}, "
            f"'{HOST}', {source.port}, '{HOST}', {to.port}, '{mode}')"
        )

    def move(self, table: str, key: object, to: Node, mode: str = "auto") -> None:
        self.coordinator.execute(self.move_command(table, key, to, mode))


# The fixtures `new_citus`: (extensions=..., workers=...) -> Citus, and `make_citus`: (settings) -> Citus
NewCitus = Callable[..., Citus]
MakeCitus = Callable[..., Citus]
