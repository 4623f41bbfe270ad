"""What the coverage suite found, as data, as text, as JSON and as a chart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from subtune.bench.charts import histogram
from subtune.bench.race import FOREIGN_LIMIT, Race
from subtune.bench.table import aligned

FLOOR_S = {"cpu": 50e-6, "cuda": 20e-6}
"""A case counts for the bars where the best peer takes longer."""
BARS = {"cpu": 0.8, "cuda": 0.7}
"""The least ratio that a case may have that counts; and the median of them all:"""
MEDIAN_BAR = 1.1
WORST = 10
EDGES = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
"""Of the histogram's bins."""


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """One case. Seconds; 0.0 where there is nothing.

    Attributes:
        outcome: `timed`, `refused`, `wrong`, `crash` or `time limit`; `why` says more of all but the first.
        best, best_s: the fastest peer that computes the same. ratio: its latency over subtune's, round by round.
        roofline_s: the least time for the case's operations and bytes at the device's nominal peaks; what stays in
            caches may be faster.
        error, peer_error: largest relative errors against float64, of subtune and of the best peer.
        defaults: subgraphs for which the default schedule was best; untuned: those that nothing was measured of.
        tried, failed: candidates, and those that did not build or whose results were wrong.
    """

    name: str
    family: str
    dtype: str
    outcome: str
    why: str = ""
    ours_s: float = 0.0
    best: str = ""
    best_s: float = 0.0
    ratio: float = 0.0
    roofline_s: float = 0.0
    error: float = 0.0
    peer_error: float = 0.0
    defaults: tuple[str, ...] = ()
    untuned: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    tried: int = 0
    failed: int = 0
    tune_s: float = 0.0
    case_s: float = 0.0
    race: Race | None = None

    @property
    def mostly_failed(self) -> bool:
        return self.failed * 2 > self.tried

    @property
    def share(self) -> float:
        """Of the roofline."""
        return self.roofline_s / self.ours_s if self.ours_s else 0.0


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """`kind` is the device's. An interrupted run holds the rows that were finished."""

    seed: int
    kind: str
    device: str
    threads: int
    against: tuple[str, ...]
    rows: tuple[CoverageRow, ...]
    is_interrupted: bool = False
    wall_s: float = 0.0

    @property
    def counting(self) -> tuple[CoverageRow, ...]:
        """The rows that the bars are about, worst first."""
        found = [row for row in self.rows if row.outcome == "timed" and row.best_s > FLOOR_S[self.kind]]
        return tuple(sorted(found, key=lambda row: row.ratio))

    @property
    def failed(self) -> tuple[CoverageRow, ...]:
        return tuple(row for row in self.rows if row.outcome != "timed")


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the cases that count. `below`: under the bar. `defaults`, `untuned`: of all cases, how many hold one."""

    counting: int
    median: float
    least: float
    below: int
    defaults: int
    untuned: int
    failed: int
    bins: tuple[tuple[str, int], ...] = field(default=())


def summary(report: CoverageReport) -> Summary:
    ratios = [row.ratio for row in report.counting]
    return Summary(
        len(ratios),
        median(ratios) if ratios else 0.0,
        min(ratios, default=0.0),
        sum(ratio < BARS[report.kind] for ratio in ratios),
        sum(bool(row.defaults) for row in report.rows),
        sum(bool(row.untuned) for row in report.rows),
        len(report.failed),
        bins(ratios),
    )


def bins(ratios: Sequence[float]) -> tuple[tuple[str, int], ...]:
    """(label, how many) for each interval between EDGES, the outermost ones open."""
    bounds = list(zip((0.0, *EDGES), (*EDGES, float("inf")), strict=True))
    labels = [f"under {EDGES[0]:g}", *(f"{low:g} to {high:g}" for low, high in bounds[1:-1]), f"{EDGES[-1]:g} and more"]
    counts = [sum(low <= ratio < high for ratio in ratios) for low, high in bounds]
    return tuple(zip(labels, counts, strict=True))


def coverage_table(report: CoverageReport) -> str:
    """A line for each case, then the histogram, the worst, what failed, the verdict. Above 1 subtune is faster."""
    found = summary(report)
    lines = [f"suite coverage, seed {report.seed}, {report.device}, against {', '.join(report.against)}"]
    rows = [["case", "us", "best peer", "its us", "ratio", "of roofline", "error", "its error", "tuned s"]]
    rows += [_cells(row) for row in report.rows if row.outcome == "timed"]
    lines += aligned(rows) if len(rows) > 1 else []
    floor = f"{FLOOR_S[report.kind] * 1e6:.0f} us"
    lines += ["", f"ratios of the {found.counting} cases whose best peer takes more than {floor}:"]
    widest = max((count for _, count in found.bins), default=0)
    for label, count in found.bins:
        lines.append(f"{label:>14} {count:4d} {'#' * round(40 * count / max(widest, 1))}")
    lines += ["", f"the worst {min(WORST, found.counting)}:"]
    for row in report.counting[:WORST]:
        lines.append(f"  {row.ratio:.2f}  {row.ours_s * 1e6:.1f} us, {row.best} {row.best_s * 1e6:.1f}  {row.name}")
        lines += [f"        {kernel}" for kernel in row.kernels]
    lines += [f"{row.outcome}: {row.name}: {row.why}" for row in report.failed]
    lines += list(_doubts(report.rows))
    lines += ["", verdict(report)]
    if report.is_interrupted:
        lines.append("interrupted: the cases above were finished by then")
    return "\n".join(lines)


def verdict(report: CoverageReport) -> str:
    """One line: median, least, and what missed its bar."""
    found, bar = summary(report), BARS[report.kind]
    return (
        f"{len(report.rows)} cases in {report.wall_s:.0f} s: median {found.median:.2f} (bar {MEDIAN_BAR}), "
        f"least {found.least:.2f}, {found.below} of {found.counting} under {bar}; "
        f"{found.failed} failed, {found.defaults} with a default schedule, {found.untuned} not tuned to the end"
    )


def coverage_json(report: CoverageReport) -> str:
    return json.dumps({"suite": "coverage", **asdict(report), "summary": asdict(summary(report))}, indent=1)


def coverage_chart(title: str, subtitle: str, found: Iterable[tuple[str, int]]) -> str:
    """The histogram as SVG, with a dashed line where the ratio is 1."""
    return histogram(title, subtitle, list(found), EDGES.index(1.0) + 1)


def _cells(row: CoverageRow) -> list[str]:
    marks = ("*" if row.defaults else "") + ("?" if row.untuned else "") + ("!" if row.mostly_failed else "")
    return [
        row.name + marks, f"{row.ours_s * 1e6:.1f}", row.best or "-", f"{row.best_s * 1e6:.1f}", f"{row.ratio:.2f}",
        f"{row.share:.0%}", f"{row.error:.0e}", f"{row.peer_error:.0e}", f"{row.tune_s:.1f}",
    ]  # fmt: skip


def _doubts(rows: Iterable[CoverageRow]) -> Iterable[str]:
    if any(row.defaults for row in rows):
        yield "* holds a subgraph whose best schedule is the default"
    if any(row.untuned for row in rows):
        yield "? holds a subgraph that was not tuned: no time, or every candidate failed"
    if any(row.mostly_failed for row in rows):
        yield "! most of its candidates did not build, or were wrong"
    disturbed = sum(row.race is not None and row.race.foreign_cores > FOREIGN_LIMIT for row in rows)
    if disturbed:
        yield f"{disturbed} cases were timed while other processes kept the cores busy: do not trust their figures"
