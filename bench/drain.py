"""Drains a backlog and measures the rate."""

import time
from dataclasses import dataclass

from workload import Bench


@dataclass
class Drain:
    """One backlog, from CREATE SERVER on."""

    start_up: float  # seconds until the first look with delivered events
    rate: float  # events per second from then on
    overall: float  # events per second since CREATE SERVER
    most_seen: float = 0  # highest value that `look` returned


def drain(
    bench: Bench, events: int, url: str, limit: float = 300, pause: float = 0.01, look=None, **options: str
) -> Drain:
    """Creates a destination for `events` events that wait in the log, and times its relay.

    The relay's own counter says what was delivered; the clock is ours. The rate is taken between two
    looks at which events were still left, so that it does not depend on how often we look.
    """
    start = time.monotonic()
    seen: list[tuple[float, int]] = []
    most = 0.0
    with bench.destination(url, **options):
        while not seen or seen[-1][1] < events:
            time.sleep(pause)
            delivered, now = bench.delivered(), time.monotonic()
            if delivered > 0:
                seen.append((now, delivered))
                most = max(most, look() if look is not None else 0)
            if now - start > limit:
                raise RuntimeError(f"{delivered} of {events} events after {limit} s: {bench.status()}")
    first, last = seen[0], seen[-2] if len(seen) > 2 else seen[-1]
    if last[0] == first[0]:
        raise RuntimeError(f"{events} events are too few: they were delivered between two looks")
    return Drain(first[0] - start, (last[1] - first[1]) / (last[0] - first[0]), events / (seen[-1][0] - start), most)
