"""Figures, and their output as a table, JSON, and a plot."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Goal:
    must: float
    hope: float
    less_is_better: bool = False

    def verdict(self, value: float) -> str:
        def reaches(limit: float) -> bool:
            return value <= limit if self.less_is_better else value >= limit

        return "hope" if reaches(self.hope) else "must" if reaches(self.must) else "SHORT"


@dataclass
class Row:
    """One thing measured several times: the median counts, the extremes are shown."""

    label: str
    samples: list[float]
    unit: str = ""
    goal: Goal | None = None

    @property
    def value(self) -> float:
        return median(self.samples)

    @property
    def verdict(self) -> str:
        return self.goal.verdict(self.value) if self.goal else ""


@dataclass
class Figure:
    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    details: dict = field(default_factory=dict)  # for the JSON only
    logarithmic: bool = False

    def add(self, label: str, samples: float | list[float], unit: str = "", goal: Goal | None = None) -> Row:
        values = samples if isinstance(samples, list) else [samples]
        row = Row(label, values, unit, goal)
        self.rows.append(row)
        return row


def number(value: float) -> str:
    if value >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.3f}"


def print_table(figure: Figure) -> None:
    print(f"\n{figure.title}  [{figure.name}]")
    width = max(len(row.label) for row in figure.rows)
    print(f"  {'':{width}}  {'median':>10}  {'min':>10}  {'max':>10}  {'must':>9}  {'hope':>9}")
    for row in figure.rows:
        goals = [number(row.goal.must), number(row.goal.hope)] if row.goal else ["", ""]
        print(
            f"  {row.label:{width}}  {number(row.value):>10}  {number(min(row.samples)):>10}  "
            f"{number(max(row.samples)):>10}  {goals[0]:>9}  {goals[1]:>9}  "
            f"{row.unit:9} {row.verdict}".rstrip()
        )
    for note in figure.notes:
        print(f"  - {note}")


def write_json(figures: list[Figure], path: Path, about: dict) -> None:
    document = about | {"figures": []}
    for figure in figures:
        entry = asdict(figure)
        for row, shown in zip(figure.rows, entry["rows"]):
            shown |= {"median": row.value, "verdict": row.verdict}
        document["figures"].append(entry)
    path.write_text(json.dumps(document, indent=2) + "\n")


def plot(figures: list[Figure], path: Path) -> None:
    """Draws one panel per figure, with the rows in the unit of its first row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [[row for row in figure.rows if row.unit == figure.rows[0].unit] for figure in figures]
    heights = [1.2 + 0.35 * len(rows) for rows in shown]
    page, panels = pyplot.subplots(
        len(figures), 1, figsize=(10, sum(heights)), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for figure, rows, panel in zip(figures, shown, panels[:, 0]):
        values = [row.value for row in rows]
        spread = [[row.value - min(row.samples) for row in rows], [max(row.samples) - row.value for row in rows]]
        panel.barh(
            range(len(rows)),
            values,
            xerr=spread,
            height=0.6,
            ecolor="0.3",
            capsize=2,
            color=["tab:blue" if row.goal else "0.75" for row in rows],
        )
        for i, row in enumerate(rows):
            panel.annotate(f" {number(row.value)}", (max(row.samples), i), va="center", fontsize=8)
            if row.goal:
                panel.plot([row.goal.must] * 2, [i - 0.4, i + 0.4], color="tab:red")
                panel.plot([row.goal.hope] * 2, [i - 0.4, i + 0.4], color="tab:green")
        panel.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
        panel.invert_yaxis()
        if figure.logarithmic:
            panel.set_xscale("log")
        panel.margins(x=0.12)
        panel.set_title(figure.title, fontsize=10, loc="left")
        panel.set_xlabel(rows[0].unit, fontsize=8)
    page.text(0.01, 0.002, "red: must, green: hope", fontsize=7)
    page.tight_layout()
    page.savefig(path, dpi=110)
    pyplot.close(page)
