"""Statements that run while the test does something else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from .citus_cluster import Node


class Background:
    """Statements in a session of their own."""

    def __init__(self, node: Node, statements: str) -> None:
        self._connection = node.connect()
        pool = ThreadPoolExecutor(1)
        self._end = pool.submit(self._connection.execute, statements)
        pool.shutdown(wait=False)

    @property
    def ended(self) -> bool:
        return self._end.done()

    def cancel(self) -> None:
        self._connection.cancel()

    def end(self) -> None:
        """Waits for their end, or raises their error."""
        try:
            self._end.result(180)
        finally:
            self._connection.close()
