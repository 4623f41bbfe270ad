"""What the suite of layers found, as data, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean

import numpy as np

from subtune.bench.peers import BUCKETS, ONE_KERNEL, STATIC
from subtune.bench.race import FOREIGN_LIMIT, BenchRow, Race
from subtune.bench.table import aligned

OWN = ("subtune", STATIC, BUCKETS, ONE_KERNEL)
WORST_BAR, MEAN_BAR = 0.05, 0.02
"""How much longer than static tuning a layer may take, at the worst shape and on the mean over its domain."""
TIME_BAR = 0.2
"""Of the time that tuning each shape alone takes."""
ONE_KERNEL_BAR = 1.05
"""The one kernel's mean latency over that of several."""
SHORT = {"onnxruntime": "ORT", "torch-dynamic": "compile", STATIC: "static", ONE_KERNEL: "one kernel"}


@dataclass(frozen=True, slots=True)
class Point:
    """The race at one value of the symbol."""

    value: int
    race: Race

    def ratio(self, framework: str) -> float:
        """Its latency over subtune's, 0.0 where there is none that agrees."""
        row = self.race.row(framework)
        return row.ratio if row is not None and row.agrees else 0.0

    @property
    def regret(self) -> float:
        """How much longer than with static tuning of this shape, as a share; negative where it is faster."""
        ratio = self.ratio(STATIC)
        return 1 / ratio - 1 if ratio else 0.0


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer. Where `failure` says why, it was not raced.

    Attributes:
        most: the symbol may be 1 to this.
        kernels: the candidates among which the layer's artifact chooses.
        expected_regret: at the worst shape against the fastest of all candidates, as the tuner told it.
        code_bytes, one_bytes, static_bytes: of the artifact, of that with one kernel, and of all that were tuned for
            one of the raced shapes alone, weights left out.
        tune_s, static_s, buckets_s: seconds of tuning for all shapes, for each of the raced shapes alone, and for each
            bucket. The one kernel comes of the first.
    """

    name: str
    symbol: str = ""
    most: int = 0
    points: tuple[Point, ...] = ()
    failure: str = ""
    kernels: tuple[str, ...] = ()
    expected_regret: float = 0.0
    code_bytes: int = 0
    one_bytes: int = 0
    static_bytes: int = 0
    tune_s: float = 0.0
    static_s: float = 0.0
    buckets_s: float = 0.0
    tried: int = 0
    failed: int = 0

    @property
    def worst_regret(self) -> float:
        return max((point.regret for point in self.points), default=0.0)

    @property
    def all_static_s(self) -> float:
        """What tuning every shape of the domain alone would take, told from those that were."""
        return self.static_s / len(self.points) * self.most if self.points else 0.0

    def mean_s(self, framework: str) -> float:
        """Latency, mean over all values of the symbol; between the raced ones it is a straight line. 0.0: not raced."""
        ours = {point.value: row.median_s for point in self.points if (row := point.race.row("subtune"))}
        ratios = {point.value: point.ratio(framework) for point in self.points}
        if not ours or not all(ratios.values()):
            return 0.0
        seconds = [ours[value] * ratios[value] for value in ours]
        return float(np.interp(range(1, self.most + 1), list(ours), seconds).mean())

    def mean_ratio(self, framework: str) -> float:
        """Its mean latency over subtune's; 0.0: not raced, or it computes something else."""
        ours = self.mean_s("subtune")
        return self.mean_s(framework) / ours if ours else 0.0

    @property
    def verdict(self) -> str:
        """yes, or which bars are not reached: worst, mean, time, one kernel; "-" where nothing was raced."""
        if not self.points:
            return "-"
        static, one = self.mean_ratio(STATIC), self.mean_ratio(ONE_KERNEL)
        missed = [
            *(["worst"] if self.worst_regret > WORST_BAR else []),
            *(["mean"] if static and 1 / static - 1 > MEAN_BAR else []),
            *(["time"] if self.tune_s > TIME_BAR * self.all_static_s else []),
            *(["one kernel"] if one and one < ONE_KERNEL_BAR else []),
        ]
        return ", ".join(missed) or "yes"


@dataclass(frozen=True, slots=True)
class DietcodeReport:
    """An interrupted suite holds the rows that were finished."""

    threads: int
    device: str
    against: tuple[str, ...]
    rows: tuple[LayerRow, ...]
    is_interrupted: bool = False

    def mean_ratio(self, framework: str) -> float:
        """Geometric mean of the layers' ratios; 0.0 where there is none."""
        ratios = [ratio for row in self.rows if (ratio := row.mean_ratio(framework))]
        return geometric_mean(ratios) if ratios else 0.0


def dietcode_table(report: DietcodeReport) -> str:
    """Mean latencies as ratios to subtune's (above 1 subtune is faster), what tuning takes, and each raced shape."""
    lines = [f"suite dietcode, {report.threads} threads, {report.device}"]
    others = (*OWN[1:], *report.against)
    heads = [SHORT.get(name, name) for name in others]
    mean = [["layer, mean over its shapes", "us", *heads, "worst regret", "bars met"]]
    cost = [["tuning and size", "all shapes s", "each alone s", "buckets s", "kernels", "code KB", "one kernel KB"]]
    for row in report.rows:
        if not row.points:
            continue
        ratios = [_ratio(row.mean_ratio(name)) for name in others]
        mean.append([row.name, f"{row.mean_s('subtune') * 1e6:.1f}", *ratios, f"{row.worst_regret:+.1%}", row.verdict])
        cost.append(
            [
                row.name, f"{row.tune_s:.1f}", f"{row.all_static_s:.0f}", f"{row.buckets_s:.1f}", str(len(row.kernels)),
                f"{row.code_bytes / 1e3:.0f}", f"{row.one_bytes / 1e3:.0f}",
            ]
        )  # fmt: skip
    if len(mean) > 1:
        total = [_ratio(report.mean_ratio(name)) for name in others]
        lines += [*aligned([*mean, ["geometric mean", "", *total, "", ""]]), "", *aligned(cost), ""]
    for row in report.rows:
        if row.points:
            lines += [*aligned(_points(row, others, heads)), ""]
    lines += _notes(report.rows)
    if report.is_interrupted:
        lines.append("interrupted: the rows above were finished by then")
    return "\n".join(lines).rstrip()


def _points(row: LayerRow, others: Sequence[str], heads: Sequence[str]) -> list[list[str]]:
    cells = [[f"{row.name}, {row.symbol}", "us", *heads]]
    for point in row.points:
        ours = point.race.row("subtune")
        assert ours is not None
        cells.append([str(point.value), f"{ours.median_s * 1e6:.1f}", *(_ratio(point.ratio(name)) for name in others)])
    return cells


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio else "-"


def _notes(rows: Sequence[LayerRow]) -> list[str]:
    """What is missing, and what was disturbed."""
    lines = [f"{row.name}: {row.failure}" for row in rows if row.failure]
    for row in rows:
        failures = {name: why for point in row.points for name, why in point.race.failures}
        wrong = {one.framework for point in row.points for one in point.race.rows if not one.agrees}
        lines += [f"{row.name}: {name} not available: {why}" for name, why in failures.items()]
        lines += [f"{row.name}: {name} gives other outputs" for name in sorted(wrong)]
        busy = max((point.race.foreign_cores for point in row.points), default=0.0)
        if busy > FOREIGN_LIMIT:
            lines.append(f"{row.name}: other processes kept {busy:.1f} cores busy meanwhile: do not trust its figures")
    return lines


def dietcode_json(report: DietcodeReport) -> str:
    """All of it, and what the rows' properties say."""
    rows = []
    for row, plain in zip(report.rows, asdict(report)["rows"], strict=True):
        names = (*OWN, *report.against)
        plain |= {"worst_regret": row.worst_regret, "all_static_s": row.all_static_s, "verdict": row.verdict}
        plain |= {"mean_s": {name: row.mean_s(name) for name in names}}
        plain["points"] = [_point(point, names) for point in row.points]
        rows.append(plain)
    return json.dumps({"suite": "dietcode", **asdict(report), "rows": rows}, indent=1)


def _point(point: Point, names: Sequence[str]) -> dict[str, object]:
    """Without what a race has of memory: processes go from shape to shape."""
    found = [row for name in names if (row := point.race.row(name))]
    return {
        "value": point.value,
        "regret": point.regret,
        "rows": [_figures(row) for row in found],
        "failures": dict(point.race.failures),
        "foreign_cores": point.race.foreign_cores,
    }


def _figures(row: BenchRow) -> dict[str, object]:
    figures = {"framework": row.framework, "median_s": row.median_s, "min_s": row.min_s, "ratio": row.ratio}
    return {**figures, "samples": row.samples, "max_rel": row.max_rel, "via": row.via}
