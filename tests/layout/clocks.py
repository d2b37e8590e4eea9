"""Where the time of day may be used: `clocks.py [top of the tree]`.

Prints one line per violation and fails if there is any.

* C++ measures durations by the monotonic clock: Clock::now(), steady_now() in server code, steady_clock in the
  client. A clock that is set back by an hour would make a deadline an hour later. Files that need the time of day
  are listed below, with the reason.
* Each stored time of day is listed with what keeps it from being waited for when the clock was set back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("bgworker", "client", "extension", "lib", "relay", "tools")
TIME_OF_DAY = re.compile(
    r"\b(?:GetCurrentTimestamp|GetCurrent\w+StartTimestamp|TimestampDifference\w*|TimestampTzPlus\w+|unix_now\(\)"
    r"|system_clock|CLOCK_REALTIME\w*|gettimeofday|time\((?:nullptr|NULL|0)\))"
)

SHOWN = "it is shown, stored or logged"
AGE = "the age of an event, whose time of day is known"
PEER = "the peer demands the time of day"
STATEMENT = "tells statements apart"
MAY_USE_IT = {
    "bgworker/base/worker.cpp": "shows when a worker is tried again; crashes.hpp",
    "bgworker/keeper/segments.cpp": "age of a stored time, which read_ring() bounds",
    "bgworker/processor_main.cpp": "age of a message; time of a retry, which inbox_internal.due_at() bounds",
    "client/include/inbox/consumer.hpp": SHOWN,
    "client/include/inbox/event.hpp": SHOWN,
    "client/sources/pubsub/channel.cpp": "gRPC makes it monotonic at once",
    "client/sources/rabbitmq/worker.cpp": "the time of a message that has none; where a stream begins",
    "client/sources/redis/session.cpp": "the time of an entry that has none",
    "client/sources/sqs/service.cpp": PEER,
    "client/src/applier.cpp": AGE + ", and spans",
    "client/src/applier.hpp": "spans",
    "client/src/log.cpp": SHOWN,
    "client/src/scripted.cpp": "the time of an event",
    "client/telemetry/otlp.cpp": "spans",
    "extension/base/crashes.cpp": "a crash survives the server; one that is later than now does not count",
    "extension/base/sandbox.cpp": "a timeout of the server, which look_at_clock() measures again",
    "extension/base/shared_state.cpp": SHOWN,
    "extension/capture/capture_event.cpp": STATEMENT,
    "extension/produce/event_headers.cpp": STATEMENT,
    "extension/produce/event_input.cpp": "the time of an event",
    "extension/produce/uuid7.cpp": "ids have it; they ascend in a session all the same",
    "lib/cloud/aws/aws_credentials.cpp": "keys have it; keys that are rejected are fetched again",
    "lib/cloud/google/google_credentials.cpp": PEER,
    "lib/core/clock.cpp": "makes it",
    "lib/core/clock.hpp": "declares it",
    "lib/core/pipeline/pipeline_outcomes.cpp": AGE,
    "lib/core/relay/relay.cpp": SHOWN,
    "lib/sinks/aws/aws_check.cpp": PEER,
    "lib/sinks/aws/aws_sink.cpp": PEER,
    "lib/sinks/http/endpoint_requests.cpp": PEER,
    "lib/sinks/http/endpoints_outcomes.cpp": SHOWN + "; Retry-After, which retry_after_of() bounds",
    "lib/sinks/http/endpoints_questions.cpp": SHOWN,
    "lib/sinks/http/http_sink.cpp": PEER + "; Retry-After, which retry_after_of() bounds",
    "lib/sinks/kafka/kafka_check.cpp": SHOWN,
    "lib/sinks/kafka/msk_token.cpp": PEER,
    "lib/sinks/kafka/token.cpp": PEER,
    "lib/sinks/mqtt/mqtt_check.cpp": "makes a name",
    "lib/sinks/pubsub/pubsub_sink.cpp": "Retry-After, which retry_after_of() bounds",
    "lib/sinks/traced_sink.cpp": "spans",
    "relay/observe/log.cpp": SHOWN,
    "relay/serve/destination_home.cpp": SHOWN,
    "tools/outboxctl/doctor.cpp": "compares the clocks of two machines",
}

# Columns by table. A time that nothing waits for is left out of the texts.
FACT = "says when something happened; nothing waits for it"
COLUMNS = {
    "inbox.bucket_check": {"not_before": "inbox.prune() takes one that is too far away for past"},
    "inbox.claimed": {"leased_until": "end_lost_leases()", "leased_at": "end_lost_leases()"},
    "inbox.consumer": {"created_at": FACT},
    "inbox.consumer_offset": {"publish_time": "of the source", "updated_at": FACT},
    "inbox.dead_message": {"first_failed_at": FACT, "died_at": FACT},
    "inbox.gap": {"since": FACT, "noted_at": FACT, "accepted_at": FACT},
    "inbox.instance": {"seen_at": "collect_figures()", "expected_by": "collect_figures()"},
    "inbox.message": {"occurred_at": FACT, "received_at": FACT},
    "inbox.offset_reset": {"publish_time": "of the source"},
    "inbox.operation": {"at": FACT},
    "inbox.processed": {"processed_at": "kept for longer"},
    "inbox.progress": {
        "saved_at": FACT, "seen_at": "note_claim()", "sampled_at": "note_claim()", "sample_occurred_at": FACT,
        "sample_received_at": FACT,
    },
    "inbox.tombstone": {"removed_at": "kept for longer"},
    "inbox.waiting": {"first_failed_at": FACT, "last_failed_at": "due_at()", "next_attempt_at": "due_at()"},
    "outbox.arriving_shard": {"since": "of another node", "gone_since": "of another node"},
    "outbox.backfill_row": {"tried_at": "only an order"},
    "outbox.backfill_task": {"started_at": FACT, "updated_at": "only an order", "finished_at": FACT},
    "outbox.batch": {"oldest": FACT, "locked_until": "bound_leases()", "fetched_at": "bound_leases()"},
    "outbox.captured": {"captured_at": FACT},
    "outbox.cursor": {"saved_at": FACT, "detached_at": FACT, "failing_since": FACT},
    "outbox.delivery": {
        "next_retry_at": "bound_retries()", "locked_at": "bound_leases()", "locked_until": "bound_leases()",
        "first_failed_at": FACT, "last_failed_at": FACT,
    },
    "outbox.endpoint": {"created_at": FACT},
    "outbox.endpoint_state": {"failing_since": FACT, "next_attempt_at": "only shown"},
    "outbox.event": {"occurred_at": FACT},
    "outbox.operation": {"requested_at": FACT},
    "outbox.producer": {"granted_at": FACT},
    "outbox.receipt": {"published_at": FACT},
    "outbox.receipt_turn": {"since": "turn_receipts()"},
    "outbox.relay": {"started_at": FACT, "leased_until": "bound_relays()", "leased_at": "bound_relays()"},
    "outbox.relay_status": {
        "state_since": FACT, "oldest_unsettled": FACT, "last_error_at": FACT, "failing_since": FACT,
        "next_attempt_at": "only shown", "reported_at": FACT,
    },
    "outbox.ring": {"since": "bound_ring()"},
    "outbox.source_event": {"enqueued_at": "kept for longer"},
    "outbox.upkeep": {"due": "is_due()", "set_at": "is_due()"},
}  # fmt: skip


def check_code(path: str, text: str) -> Iterator[str]:
    code = re.sub(r"//[^\n]*", "", text)
    uses = [match for match in TIME_OF_DAY.finditer(code)]
    if path in MAY_USE_IT and not uses:
        yield f"{path}:1: does not use the time of day, but tests/layout/clocks.py lists it"
    elif path not in MAY_USE_IT:
        for use in uses:
            line = code.count("\n", 0, use.start()) + 1
            yield f"{path}:{line}: {use[0]}: a duration is of the monotonic clock; else see tests/layout/clocks.py"


def stored_times(text: str) -> Iterator[tuple[str, str]]:
    """Table and column."""
    for table in re.finditer(r"^CREATE (?:UNLOGGED )?TABLE ([\w.]+) \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL):
        for column in re.finditer(r'^\s+"?(\w+)"?\s+timestamptz', table[2], re.MULTILINE):
            yield table[1], column[1]


def check_script(path: str, text: str) -> Iterator[str]:
    for table, column in stored_times(text):
        if column not in COLUMNS.get(table, {}):
            yield f"{path}:1: what bounds {table}.{column} when the clock was set back? Say it in tests/layout/clocks.py"


def check(top: Path) -> list[str]:
    violations: list[str] = []
    for room in ROOMS:
        for file in sorted((top / room).rglob("*.?pp")):
            violations += check_code(str(file.relative_to(top)), file.read_text())
    for file in sorted([*(top / "sql").rglob("*.sql"), *(top / "sql").rglob("*.sql.in")]):
        violations += check_script(str(file.relative_to(top)), file.read_text())
    return violations


def main() -> int:
    violations = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
    print(*violations, sep="\n", end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
