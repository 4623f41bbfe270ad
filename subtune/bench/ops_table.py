"""The report of `--suite cpu-ops` as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from subtune.bench.suite_ops import OpsReport
from subtune.bench.table import aligned, race_notes, ratio_text


def ops_table(report: OpsReport) -> str:
    """Latencies as ratios to subtune's; the shares are of the multiply-adds or of the copy bandwidth there is.

    A call takes and gives numpy arrays; the kernels' times are the tuner's. op/op: `OpRow.op_ratio`.
    """
    lines = [f"suite cpu-ops, f32, {report.threads} threads, {report.device}"]
    if report.peak_flops:
        lines.append(f"peak of multiply-adds measured here: {report.peak_flops / 1e9:.0f} GFLOP/s")
    rows = [["operator", "call us", "kernel us", *report.against, "op/op", "limit", "call %", "kernel %", "met"]]
    for row in report.rows:
        if row.race is None:
            continue
        ours = row.race.row("subtune")
        assert ours is not None
        rows.append(
            [
                row.name, f"{ours.median_s * 1e6:.1f}", f"{row.kernel_s * 1e6:.1f}" if row.kernel_s else "-",
                *(ratio_text(row.race.row(name)) for name in report.against),
                f"{row.op_ratio:.2f}" if row.op_ratio else "-", row.limit, f"{row.share:.0%}",
                f"{row.kernel_share:.0%}" if row.kernel_s else "-", row.verdict,
            ]
        )  # fmt: skip
    if len(rows) > 1:
        lines += aligned(rows)
    for row in report.rows:
        if row.failure:
            lines.append(f"{row.name}: {row.failure}")
        if row.untuned:
            lines.append(f"{row.name}: {row.untuned} of {len(row.winners)} kernels were not tuned")
        if row.race is not None:
            lines += race_notes(row.name, row.race.rows, row.race.failures, row.race.foreign_cores)
    lines.append(str(report.quality))
    if report.is_interrupted:
        lines.append("interrupted: the rows above were finished by then")
    return "\n".join(lines)


def ops_json(report: OpsReport) -> str:
    return json.dumps({"suite": "cpu-ops", **asdict(report)}, indent=1)
