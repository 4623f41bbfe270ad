"""A stored run of the suite of layers as a part of the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from subtune.bench.charts import Line
from subtune.bench.dietcode.report import OWN
from subtune.bench.panels import Panel, panels
from subtune.bench.race import DISAGREES
from subtune.bench.section import Section, details, table
from subtune.bench.stored import StoredRun

_NAMES = {
    "static": "static tuning", "buckets": "buckets", "one-kernel": "one kernel", "onnxruntime": "ONNX Runtime",
    "openvino-f32": "OpenVINO", "torch": "PyTorch", "torch-graph": "PyTorch", "torch-dynamic": "torch.compile",
}  # fmt: skip
_DRAWN = 12
"""Panels in the chart: the first of the layers."""
_TEXT = """\
One artifact for all shapes beside: an artifact tuned for each shape alone; artifacts tuned for powers of two, to which
inputs are padded; one kernel for all shapes, the best there is; and frameworks with symbolic dimensions. A ratio is the
other's mean latency over subtune's, the mean over all shapes of the domain, in a straight line between those that were
raced: above 1 subtune's one artifact is faster. The worst regret is against static tuning, over the raced shapes."""

Row = Mapping[str, Any]


def dietcode_section(run: StoredRun) -> Section:
    """`--suite dietcode`: a row per layer, and a panel of latency over the shape for each of the first."""
    report = run.report
    rows = [row for row in report["rows"] if row["points"]]
    others = (*OWN[1:], *report["against"])
    speed, cost = [], []
    for row in rows:
        mean = row["mean_s"]
        ratios = [f"{mean[name] / mean['subtune']:.2f}" if mean[name] else "" for name in others]
        speed.append([row["name"], f"{mean['subtune'] * 1e6:.0f}", *ratios, f"{row['worst_regret']:+.1%}"])
        tuning = [f"{row[key]:.0f}" for key in ("tune_s", "all_static_s", "buckets_s")]
        size = [f"{row[key] / 1e3:.0f}" for key in ("code_bytes", "one_bytes", "static_bytes")]
        cost.append([row["name"], *tuning, str(len(row["kernels"])), *size])
    text = [
        _TEXT,
        table(("layer", "subtune, us", *(_NAMES.get(name, name) for name in others), "worst regret"), speed),
        "What tuning takes, in seconds: for all shapes, for each shape alone (told from those that were tuned), and "
        "for the buckets. How many kernels the artifact chooses from. KB of code: of it, with one kernel, and of all "
        "the artifacts for one of the raced shapes.",
        table(("layer", "all shapes", "each alone", "buckets", "kernels", "KB", "one kernel", "static"), cost),
        details("Every raced shape: subtune's microseconds, and the ratios", _points(rows, others)),
        "\n".join(f"- {row['name']}: {row['failure']}" for row in report["rows"] if row["failure"]),
    ]
    chart = dietcode_chart(run) if rows else ""
    return Section("Layers of many shapes", "\n\n".join(filter(None, text)), chart, "latency over the shape")


def dietcode_chart(run: StoredRun) -> str:
    """Latency over the symbol's value."""
    shown = []
    for row in [row for row in run.report["rows"] if row["points"]][:_DRAWN]:
        lines = []
        for name in (*OWN, *run.report["against"]):
            points = tuple((point["value"], s * 1e6) for point in row["points"] if (s := _seconds(point, name)))
            lines += [Line(_NAMES.get(name, name), points)] if points else []
        shown.append(Panel(row["name"], row["symbol"], tuple(lines)))
    where = f"{run.run.machine.split(',')[0]}, {run.report['threads']} threads, {run.run.date}; lower is better"
    return panels("Latency over the shape, microseconds", where, "us", shown)


def _points(rows: list[Row], others: tuple[str, ...]) -> str:
    cells = []
    for row in rows:
        for point in row["points"]:
            seconds = _seconds(point, "subtune")
            ratios = [f"{ratio:.2f}" if (ratio := _ratio(point, name)) else "" for name in others]
            cells.append([f"{row['name']}, {row['symbol']} {point['value']}", f"{seconds * 1e6:.0f}", *ratios])
    return table(("layer", "us", *(_NAMES.get(name, name) for name in others)), cells)


def _ratio(point: Row, name: str) -> float:
    """Over subtune's latency; 0.0 where there is none that agrees."""
    found = next((row for row in point["rows"] if row["framework"] == name), None)
    return float(found["ratio"]) if found and found["max_rel"] <= DISAGREES else 0.0


def _seconds(point: Row, name: str) -> float:
    """By the ratio, so that a drift of the machine cancels."""
    ours = next(row for row in point["rows"] if row["framework"] == "subtune")
    return float(ours["median_s"]) * (_ratio(point, name) if name != "subtune" else 1.0)
