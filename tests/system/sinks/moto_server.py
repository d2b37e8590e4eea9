"""moto with one request at a time on its queues and streams.

moto answers each request in a thread of its own and locks hardly anything. Two concurrent polls may
get the same message. A poll looks up the groups in flight when it begins, so one
that has waited since may get messages behind those of other polls. SQS promises that neither
happens, and a consumer with several polls relies on it for the order of a group.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from moto.kinesis.models import KinesisBackend
from moto.server import main
from moto.sqs.models import Message, Queue, SQSBackend

poll_once = SQSBackend.receive_message


def receive_message(
    self: SQSBackend, queue_name: str, count: int, wait: int, visibility: int, attributes: list[str]
) -> list[Message]:
    queue, until = self.get_queue(queue_name), time.monotonic() + wait
    while True:
        with queue._messages_lock:
            messages = poll_once(self, queue_name, count, 0, visibility, attributes)
        if messages or time.monotonic() >= until:
            return messages
        time.sleep(0.02)


def locked(change: Callable[..., None]) -> Callable[..., None]:
    """Runs under the lock with which messages are added."""

    def changed(self: SQSBackend, queue_name: str, *arguments: Any, **named: Any) -> None:
        queue: Queue = self.get_queue(queue_name)
        with queue._messages_lock:
            change(self, queue_name, *arguments, **named)

    return changed


putting = threading.Lock()
put_together = KinesisBackend.put_records


def put_records(self: KinesisBackend, *arguments: Any, **named: Any) -> dict[str, Any]:
    """Two at a time might give their records the same sequence number, and lose one."""
    with putting:
        return put_together(self, *arguments, **named)


KinesisBackend.put_records = put_records
SQSBackend.receive_message = receive_message
SQSBackend.delete_message = locked(SQSBackend.delete_message)
SQSBackend.change_message_visibility = locked(SQSBackend.change_message_visibility)

if __name__ == "__main__":
    main()
