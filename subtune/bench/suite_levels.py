"""`subtune bench --suite op-vs-subgraph`: the effect of tuning what ships instead of its anchor, on this device.

AutoTVM tuned an int8 convolution with its int32 output; what ran stored int8, a quarter of the bytes, and another
schedule was twice as fast on it (apache/tvm#10650: the op's winner 224 us on the subgraph, a schedule that lost on the
op 104 us; 6.3 % of a model). The cases are subgraphs whose output is narrower, or whose epilogue reads more, than what
the anchor alone would have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from subtune import backends
from subtune.backends.base import Device
from subtune.bench.gpu_op import GpuOp
from subtune.bench.suite import Settings, reason, run_cases
from subtune.bench.table import aligned
from subtune.core.workload import Workload
from subtune.measure import LocalMeasurer
from subtune.report.comparison import ComparedSubgraph
from subtune.tuning.compare import compare_subgraphs


@dataclass(frozen=True, slots=True)
class LevelCase:
    """A subgraph; `gpu_dims` and float16, where it is of float32, on a device that multiplies halves."""

    name: str
    op: GpuOp
    gpu_dims: tuple[int, ...] = ()

    def on(self, device: Device) -> GpuOp:
        if "float16" not in device.backend.forms(device.model).halves:
            return self.op
        dtype = "float16" if self.op.dtype == "float32" else self.op.dtype
        dims = self.gpu_dims or self.op.dims
        return GpuOp(self.op.kind, dims, dtype, self.op.out, self.op.layout, self.op.epilogue)


def _int8(name: str, size: int, cin: int, cout: int, kernel: int) -> LevelCase:
    dims = (1, size, cin, cout, kernel, 1, kernel // 2)
    return LevelCase(name, GpuOp("conv", dims, "int8", "int8", epilogue="bias+requantise"), (16, *dims[1:]))


def _conv(name: str, size: int, cin: int, cout: int, kernel: int, epilogue: str) -> LevelCase:
    dims = (1, size, cin, cout, kernel, 1, kernel // 2)
    return LevelCase(name, GpuOp("conv", dims, "float32", epilogue=epilogue), (32, *dims[1:]))


CASES = (
    _int8("int8-conv3x3-56-64", 56, 64, 64, 3),
    _int8("int8-conv1x1-56-64-256", 56, 64, 256, 1),
    _int8("int8-conv3x3-28-128", 28, 128, 128, 3),
    LevelCase(
        "int8-matmul-512-512-64",
        GpuOp("product", (512, 512, 64), "int8", "int8", epilogue="requantise"),
        (4096, 4096, 64),
    ),
    _conv("conv3x3-56-residual", 56, 64, 64, 3, "bias+residual+relu"),
    _conv("conv1x1-56-64-256-residual", 56, 64, 256, 1, "bias+residual+relu"),
    _conv("conv3x3-28-gelu", 28, 128, 128, 3, "bias+gelu"),
    LevelCase(
        "matmul-128-768-768-residual",
        GpuOp("product", (128, 768, 768), "float32", layout="nn", epilogue="bias+residual"),
        (2048, 768, 768),
    ),
    LevelCase(
        "matmul-128-3072-768-gelu",
        GpuOp("product", (128, 3072, 768), "float32", layout="nn", epilogue="bias+gelu"),
        (2048, 3072, 768),
    ),
)


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One case: what either granularity chose, timed on the subgraph. `failure` says why it was not."""

    name: str
    failure: str = ""
    compared: ComparedSubgraph | None = None

    @property
    def gain(self) -> float:
        """The op's winner's latency over the subgraph's own; 0.0 where the op's winner fails on the subgraph."""
        found = self.compared
        return found.op_s / found.subgraph_s if found and found.subgraph_s else 0.0


@dataclass(frozen=True, slots=True)
class LevelReport:
    device: str
    rows: tuple[LevelRow, ...]
    is_interrupted: bool = False

    @property
    def gain(self) -> float:
        """Geometric mean."""
        gains = [row.gain for row in self.rows if row.gain]
        return float(prod(gains) ** (1 / len(gains))) if gains else 0.0


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    workload: Workload
    uses: int = 1


def run_levels(
    cases: Iterable[LevelCase], settings: Settings, keep: Callable[[LevelReport], Any] = lambda report: None
) -> LevelReport:
    """Tune every case at both granularities, on the GPU if there is one; Ctrl-C ends the suite after what is done."""
    device = device_of(settings)
    with LocalMeasurer() as measurer:
        return run_cases(
            cases,
            lambda case: _run(case, settings, device, measurer),
            lambda rows, is_interrupted: LevelReport(device.fingerprint(), tuple(rows), is_interrupted),
            keep,
        )


def device_of(settings: Settings) -> Device:
    """What the settings name; by default this machine's GPU, or its processor where it has none."""
    target = settings.option("target") or "auto"
    if target == "auto":
        target = next((backend.kind for backend in backends.BACKENDS if backend.accelerators()), target)
    return backends.device_of(target, settings.option("threads"), settings.option("device_file"), settings.numerics)


def _run(case: LevelCase, settings: Settings, device: Device, measurer: LocalMeasurer) -> LevelRow:
    settings.tell(case.name)
    try:
        unit = _Case(case.name, case.on(device).workload())
        topk, budget_s = int(settings.option("topk") or 20), settings.option("budget_s")
        found = compare_subgraphs([unit], device, settings.database, measurer, topk, budget_s, settings.progress)
    except Exception as e:  # whatever one row meets, the others are still to be measured
        return LevelRow(case.name, failure=reason(e))
    if found.left_out:
        return LevelRow(case.name, failure=found.left_out[0].why)
    if not found.rows:
        return LevelRow(case.name, failure="its anchor cannot be tuned alone")
    return LevelRow(case.name, compared=found.rows[0])


def levels_table(report: LevelReport) -> str:
    """Microseconds of the subgraph with either winner; gain: the first over the second."""
    lines = [f"suite op-vs-subgraph, {report.device}"]
    rows = [["subgraph", "op-level us", "subgraph us", "gain", "other winner"]]
    for row in report.rows:
        if (found := row.compared) is not None:
            op_us = f"{found.op_s * 1e6:.2f}" if found.op_s else "fails"
            gain = f"{row.gain:.2f}" if row.gain else "-"
            rows.append([row.name, op_us, f"{found.subgraph_s * 1e6:.2f}", gain, "yes" if found.has_changed else "no"])
    lines += aligned(rows) if len(rows) > 1 else []
    for row in report.rows:
        if row.failure:
            lines.append(f"{row.name}: {row.failure}")
        elif row.compared is not None and row.compared.note:
            lines.append(f"{row.name}: {row.compared.note}")
    changed = sum(row.compared.has_changed for row in report.rows if row.compared is not None)
    lines.append(
        f"{changed} of {len(rows) - 1} have another winner than their op; geometric mean of gains {report.gain:.3f}"
    )
    if report.is_interrupted:
        lines.append("interrupted: the rows above were finished by then")
    return "\n".join(lines)


def levels_json(report: LevelReport) -> str:
    plain = asdict(report)
    for row, cells in zip(report.rows, plain["rows"], strict=True):
        cells["gain"] = row.gain
    return json.dumps({"suite": "op-vs-subgraph", **plain, "gain": report.gain}, indent=1)
