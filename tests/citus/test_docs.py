"""docs/operations/citus.md: its statements are run on a coordinator, in their order."""

from __future__ import annotations

import subprocess

from docs_blocks import blocks

from .citus_cluster import MakeCitus

PAGE = "docs/operations/citus.md"


def test_the_statements_of_the_page(make_citus: MakeCitus) -> None:
    citus = make_citus({"outbox.allowed_hosts": ""}, extensions=["citus"])
    statements = [block for block in blocks() if block.page == PAGE]
    assert len(statements) > 5
    for block in statements:
        done = subprocess.run(
            ["psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", citus.coordinator.cluster.conninfo(citus.name), "-f", "-"],
            input=block.text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}:\n{block.text}\n{done.stdout}"
        assert " | f | " not in done.stdout, f"{block} has failed on a node:\n{done.stdout}"
    orders = [node.value("SELECT count(*) FROM outbox.event WHERE topic = 'order.events'") for node in citus.nodes]
    assert sorted(orders) == [0, 0, 1] and orders[0] == 0, "the event is on the node of its row"
