"""The suites' reports as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from subtune.bench.race import FOREIGN_LIMIT, BenchRow, shown_name
from subtune.bench.suite_cpu import CpuReport, ModelRow

_SHORT = {"onnxruntime": "ORT", "openvino-f32": "OV f32", "openvino": "OV", "torch-compile": "compile"}


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def cpu_table(report: CpuReport) -> str:
    """Latencies as ratios to subtune's (above 1 subtune is faster), memory in MB, what is not there with its reason."""
    lines = [f"suite cpu, {report.mode}, {report.threads} threads, {report.device}"]
    heads = [_SHORT.get(name, name) for name in report.against]
    timing = [["model", "ms", *heads, "best peer", "bar", "met", "tune s", "compile s", "tried", "failed"]]
    error = [["largest relative error", *heads]]
    memory = [["peak MB (of it the model)", "subtune", *heads]]
    for row in report.rows:
        if row.report is None:
            continue
        found = row.report
        ours = found.row("subtune")
        assert ours is not None
        ratios = [ratio_text(found.row(name)) for name in report.against]
        timing.append(
            [
                row.name, f"{ours.median_s * 1e3:.3f}", *ratios, row.best or "-", f"{row.bar:.2f}" if row.bar else "-",
                row.verdict, f"{row.tune_s:.1f}", f"{row.compile_s:.1f}", str(row.tried),
                str(row.failed),
            ]
        )  # fmt: skip
        error.append([row.name, *(_error(found.row(name)) for name in report.against)])
        memory.append([row.name, *(_megabytes(found.row(name)) for name in ("subtune", *report.against))])
    if len(timing) > 1:
        lines += [*aligned(timing), "", *aligned(error), "", *aligned(memory), ""]
    lines += notes(report.rows)
    lines.append(str(report.quality))
    if report.is_interrupted:
        lines.append("interrupted: the rows above were finished by then")
    return "\n".join(lines)


def notes(rows: Iterable[ModelRow]) -> list[str]:
    """What is missing from the tables, and what makes a row doubtful."""
    lines = []
    for row in rows:
        if row.failure:
            lines.append(f"{row.name}: {row.failure}")
        if row.untuned:
            lines.append(f"{row.name}: {row.untuned} of {row.subgraphs} subgraphs were not tuned")
        if row.report is not None:
            lines += race_notes(row.name, row.report.rows, row.report.failures, row.report.foreign_cores)
    return lines


def race_notes(
    name: str, rows: Iterable[BenchRow], failures: Iterable[tuple[str, str]], foreign_cores: float
) -> list[str]:
    lines = [f"{name}: {peer} not available: {why}" for peer, why in failures]
    lines += [f"{name}: {one.framework} gives other outputs" for one in rows if not one.agrees]
    lines += [f"{name}: {one.framework} is {shown_name(one)}" for one in rows if one.via]
    if foreign_cores > FOREIGN_LIMIT:
        lines.append(f"{name}: other processes kept {foreign_cores:.1f} cores busy meanwhile: do not trust its figures")
    return lines


def cpu_json(report: CpuReport) -> str:
    rows = []
    for row, plain in zip(report.rows, asdict(report)["rows"], strict=True):
        plain["verdict"] = row.verdict
        if row.report is not None:
            plain["report"] = json.loads(row.report.to_json())
        rows.append(plain)
    return json.dumps({"suite": "cpu", **asdict(report), "rows": rows}, indent=1)


def ratio_text(row: BenchRow | None) -> str:
    """With a mark where the framework's outputs are others."""
    return f"{row.ratio:.2f}" + ("" if row.agrees else "!") if row else "-"


def _error(row: BenchRow | None) -> str:
    return f"{row.max_rel:.1e}" if row else "-"


def _megabytes(row: BenchRow | None) -> str:
    return f"{row.peak_rss_bytes / 1e6:.0f} ({row.model_bytes / 1e6:.0f})" if row else "-"
