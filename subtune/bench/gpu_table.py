"""The reports of the GPU suites as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from subtune.bench.suite_gpu import FIRST_BAR, GpuReport, GpuRow
from subtune.bench.table import aligned

_HEADS = (
    "row", "doc us", "x", "dlight", "top-1", "top-k", "torch", "/dlight", "/torch", "top-1/k", "tune s", "doc", "rho",
    "regret@1", "@5", "@20", "met",
)  # fmt: skip


def gpu_table(report: GpuReport) -> str:
    """Latencies in microseconds on this device; `doc us` and `x` are the document's own, on its device.

    x: its speed-up over the default dlight, or over NVIDIA's library. /dlight, /torch: theirs over top-k's, above 1
    subtune is ahead. tune s: subtune's and the document's seconds. rho: rank correlation of what was predicted.
    """
    lines = [f"suite {report.suite}, {report.device}"]
    rows = [list(_HEADS), *(_cells(row) for row in report.rows if row.best_s)]
    if len(rows) > 1:
        lines += aligned(rows)
    for row in report.rows:
        if row.failure:
            lines.append(f"{row.name}: {row.failure}")
        if row.note:
            lines.append(f"{row.name}: {row.note}")
    if timed := [row for row in report.rows if row.best_s]:
        met = sum(row.verdict == "yes" for row in timed)
        lines.append(f"{met} of {len(timed)} rows meet the document's ratio and the bar against PyTorch's libraries")
        both = sum(bool(row.first_s) for row in timed)
        lines.append(
            f"the model's first choice is within {FIRST_BAR:.2f} of the best on {report.first_within:.0%} of {both}"
        )
    lines.append(str(report.quality))
    if report.is_interrupted:
        lines.append("interrupted: the rows above were finished by then")
    return "\n".join(lines)


def _cells(row: GpuRow) -> list[str]:
    published = row.published
    quality = row.quality[0] if len(row.quality) == 1 else None
    regret = [f"{r:.0%}" for r in quality.regret] if quality else ["-"] * 3
    return [
        row.name,
        _us(published.best_s) if published else "-",
        f"{published.speedup:.2f}" if published else "-",
        *(_us(s) for s in (row.default_s, row.first_s, row.best_s, row.library_s)),
        _ratio(row.to_default),
        _ratio(row.to_library),
        _ratio(row.first_s / row.best_s),
        f"{row.tune_s:.1f}",
        f"{published.tune_s:.1f}" if published and published.tune_s else "-",
        f"{quality.spearman:.2f}" if quality else "-",
        *regret,
        row.verdict,
    ]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.{2 if seconds < 1e-4 else 0}f}" if seconds else "-"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value else "-"


def gpu_json(report: GpuReport) -> str:
    plain = asdict(report)
    for row, cells in zip(report.rows, plain["rows"], strict=True):
        cells |= {"verdict": row.verdict, "to_default": row.to_default, "to_library": row.to_library}
    return json.dumps({**plain, "first_within": report.first_within}, indent=1)
