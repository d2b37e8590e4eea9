"""How the cost of an event grows: with the events that wait, their size, the size of transactions, destinations and keys.

Each point is a backlog that is drained to `null:`, or to nginx for the keys, where order matters. Cost is the processor
time of the relay, its start included; the rate is from CREATE SERVER on. So small backlogs say little here: see backlog.
With several destinations both are those of one of them, without its start. The curves are drawn into curves.png.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from drain import drain
from figures import destinations
from figures.drain_http import nginx
from recorded import cpu_seconds
from report import Figure
from workload import Bench


@dataclass
class Point:
    at: int
    rate: float
    cost: float  # microseconds of the relay's processor time


@dataclass
class Curve:
    title: str
    axis: str
    points: list[Point]


def point(bench: Bench, at: int, events: int, url: str = "null:", per: int = 100, **fill: int) -> Point:
    def once() -> Point:
        bench.clear_log()
        bench.sql.execute("CHECKPOINT")
        bench.fill(events, per, **fill)
        used = drain(bench, events, url, 300, pause=0.005, look=lambda: cpu_seconds(bench.relay_pid()))
        return Point(at, used.overall, used.most_seen / events * 1e6)

    return typical(bench, at, once)


def typical(bench: Bench, at: int, once: Callable[[], Point]) -> Point:
    samples = [bench.undisturbed(once) for _ in range(3)]
    bench.say(f"{at:,}: {median(one.cost for one in samples):.2f} us, {median(one.rate for one in samples):,.0f}/s")
    return Point(at, median(one.rate for one in samples), median(one.cost for one in samples))


def many(bench: Bench, count: int, events: int) -> Point:
    def once() -> Point:
        work = destinations.backlog(bench, count, events)
        return Point(count, work.rate, work.processor)

    return typical(bench, count, once)


def curves(bench: Bench) -> list[Curve]:
    few, most = (100_000, 1_000_000) if bench.quick else (500_000, 10_000_000)
    backlog = [size for size in (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000) if size <= most]
    sizes = (64, 512, 4_096, 32_768)
    found = [
        Curve("by backlog", "events that wait", [point(bench, size, size) for size in backlog]),
        Curve(
            "by payload",
            "bytes of an event",
            [point(bench, size, min(few, 1_600_000_000 // size // 1_000 * 1_000), size=size) for size in sizes],
        ),
        Curve(
            "by transaction",
            "events of a transaction",
            [point(bench, per, few, per=per) for per in (1, 10, 100, 1_000)],
        ),
        Curve("by destinations", "destinations", [many(bench, count, few) for count in (1, 2, 4, 8, 16)]),
    ]
    with nginx(bench) as port:
        keys = [
            point(bench, keys, min(few // 2, 20_000 * keys), f"http://127.0.0.1:{port}/events", keys=keys)
            for keys in (1, 10, 100, 10_000)
        ]
    return [*found, Curve("by keys, to HTTP", "ordering keys", keys)]


def plot(found: list[Curve], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    page, panels = pyplot.subplots(2, (len(found) + 1) // 2, figsize=(15, 7.2))
    for panel in panels.flat[len(found) :]:
        panel.axis("off")
    for curve, panel in zip(found, panels.flat):
        xs = [one.at for one in curve.points]
        panel.plot(xs, [one.cost for one in curve.points], "o-", color="tab:blue")
        panel.set_xscale("log")
        panel.set_ylim(0, 1.1 * max(one.cost for one in curve.points))
        panel.set_title(curve.title, fontsize=10, loc="left")
        panel.set_xlabel(curve.axis, fontsize=8)
        panel.set_ylabel("processor time of the relay, us an event", fontsize=8, color="tab:blue")
        rates = panel.twinx()
        rates.plot(xs, [one.rate for one in curve.points], "s--", color="0.5")
        rates.set_ylim(0, 1.1 * max(one.rate for one in curve.points))
        rates.ticklabel_format(axis="y", style="plain")
        rates.set_ylabel("events/s, dashed", fontsize=8, color="0.4")
    page.tight_layout()
    page.savefig(path, dpi=110)
    pyplot.close(page)


def measure(bench: Bench) -> Figure:
    bench.need_sink("http")
    bench.touch_memory()
    found = curves(bench)
    plot(found, bench.programs / "curves.png")
    figure = Figure("curves", "Processor time of the relay for an event", logarithmic=True)
    for curve in found:
        for one in curve.points:
            figure.add(f"{curve.title}: {one.at:,}", one.cost, "us")
    for curve in found:
        for one in curve.points:
            figure.add(f"{curve.title}: {one.at:,}, rate from CREATE SERVER on", one.rate, "events/s")
    figure.notes = [
        "512-byte events unless said otherwise, 100 a transaction, 10,000 keys; medians of three",
        bench.disturbances(),
    ]
    return figure
